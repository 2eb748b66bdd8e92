"""The words that passages are made of.

The generator draws from these lists: a word added, dropped or moved changes the text of every seed.
"""

from typing import Dict, Sequence

FIRST_NAMES = """
Marta Ilya Tomas Greta Owen Sonia Victor Nadia Felix Clara Hugo Irene Jonas Leila Magnus Nora Oscar
Petra Quinn Rosa Simon Tessa Ulric Vera Walter Xenia Yusuf Zora Adrian Bella Cedric Daphne Edgar
Fiona Gavin Helen Igor Judith Karl Lydia Martin Naomi Otto Paula Ralph Sylvia Trevor Ursula Vincent
Wendy Albert Bianca Conrad Diana Ernest Flora Gustav Hanna Ivan Julia Kevin Laura Milo Nina Oliver
Phoebe Robert Sarah Theo Viola William Agnes Boris Carmen Dennis Elena Frank Gloria Harold Ingrid
""".split()
SURNAME_STARTS = """
Vel Ash Bran Cold Dun Far Gar Hol Kess Lang Mar Nor Pell Rad Sten Tor Ul Wick Ham Bor
""".split()
SURNAME_ENDS = "kin ford man well ton berg sen rick by low field dale worth gate mond son".split()
TOWN_STARTS = """
Har Dun Port Sorr Vant Lim Oak Brae Cal Mill Stone Fern Glen Raven Salt West East Black Silver Red
Wood Cross Elm Thorn King High
""".split()
TOWN_ENDS = (
    "row more ley wick bury ham mouth ford bridge stead holm port field haven ton shaw".split()
)
JOBS = """
carpenter baker teacher nurse pilot lawyer farmer painter doctor singer tailor miner sailor
gardener plumber chemist butcher librarian dentist barber engineer poet fisherman clerk
""".split()
HOBBIES = """
chess fishing sailing pottery dancing archery cycling skating hiking knitting boxing rowing fencing
juggling surfing running
""".split()
ANIMALS = "horse dog cat parrot goat rabbit turtle goose pony ferret donkey hamster".split()
PET_NAMES = """
Comet Biscuit Shadow Pepper Ginger Rusty Daisy Pickle Misty Rocket Bubbles Hazel Domino Clover
Smoky Ziggy
""".split()
COLORS = "grey red blue green white black yellow brown purple orange pink golden".split()
INSTRUMENTS = "violin piano flute guitar drum harp trumpet cello banjo organ".split()
DRINKS = "coffee tea cider milk cocoa lemonade beer water wine juice".split()
COMPANY_STARTS = """
Aldine Borealis Cardinal Delta Emerald Falcon Granite Horizon Imperial Jupiter Keystone Liberty
Meridian Northern Orchid Pioneer Quantum Regal Summit Trident Union Vertex Willow Zenith
""".split()
COMPANY_ENDS = "Press Motors Textiles Bank Foods Glass Shipping Steel Mining Records".split()
PRODUCTS = """
clocks boats carpets lamps bicycles candles mirrors pianos ropes shoes toys bricks bottles
umbrellas ladders kettles hats tractors
""".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
TRANSPORTS = "ferry train bus tram coach plane canoe truck".split()
INN_NAMES = "Lantern Anchor Crown Swan Fox Lion Bell Barrel Rose Stag Dolphin Eagle".split()
RIVERS = "Orla Tamsin Derwen Kelda Isken Morva Arrun Severin Lune Wye Tavy Esker".split()
PIECES = "vase mask sword crown statue drum scroll ring shield cup carpet map".split()
MATERIALS = "bronze silver ivory marble copper oak clay glass jade iron silk leather".split()
CENTURIES = "second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
SPECIALITIES = "cheese lace honey apples wool salt pottery roses bread soap pepper trout".split()

# Attributes whose value is one draw from a list.
SIMPLE_VALUES: Dict[str, Sequence[str]] = {
    "job": JOBS,
    "hobby": HOBBIES,
    "instrument": INSTRUMENTS,
    "drink": DRINKS,
    "car": COLORS,
    "product": PRODUCTS,
    "river": RIVERS,
    "famed": SPECIALITIES,
    "transport": TRANSPORTS,
    "day": DAYS,
    "material": MATERIALS,
    "age": CENTURIES,
}
