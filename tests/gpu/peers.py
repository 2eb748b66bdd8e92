"""What PyTorch (SDPA, cuBLAS) and HuggingFace's transformers reach with random bf16 weights of an 8B Llama shape: tokens per
second of prefill (4,096 tokens) and of decode at batch 1 behind 512, each timed twice. Prints a line of JSON for each as it is measured; what
is not installed is a reason.

    peers.py [--device cuda] [--small]
"""

import argparse
import json
import time
from typing import Any, Callable, Dict, List, Tuple

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 4096, 14336, 32, 32, 8, 128, 128256
PREFILL, CONTEXT, STEPS = 4096, 512, 32


def timed(torch: Any, device: str, call: Callable[[], Any], repeats: int) -> float:
    """Median seconds."""
    def once() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin
    once()
    return sorted(once() for _ in range(repeats))[repeats // 2]


def twice(measure: Callable[[], float]) -> Tuple[float, float]:
    """The mean of two timings, and by how much of it they are apart."""
    times = [measure() for _ in range(2)]
    mean = sum(times) / 2
    return mean, round(abs(times[0] - times[1]) / mean, 4)


class TorchLlama:
    """A decoder as its users write it: torch.nn.functional, a static cache."""

    def __init__(self, torch: Any, device: str, layers: int) -> None:
        self.torch, self.device = torch, device
        def weight(out: int, inputs: int) -> Any:
            return torch.randn(out, inputs, device=device, dtype=torch.bfloat16) * inputs ** -0.5
        kv = KV_HEADS * HEAD_DIM
        self.layers: List[Dict[str, Any]] = [
            {"qkv": weight(HIDDEN + 2 * kv, HIDDEN), "o": weight(HIDDEN, HIDDEN), "gate_up": weight(2 * FFN, HIDDEN),
             "down": weight(HIDDEN, FFN), "norm1": torch.ones(HIDDEN, device=device, dtype=torch.bfloat16),
             "norm2": torch.ones(HIDDEN, device=device, dtype=torch.bfloat16)} for _ in range(layers)]
        self.embedding, self.head = weight(VOCAB, HIDDEN), weight(VOCAB, HIDDEN)
        self.norm = torch.ones(HIDDEN, device=device, dtype=torch.bfloat16)
        shape = (layers, 2, 1, KV_HEADS, PREFILL, HEAD_DIM)
        self.cache = torch.zeros(shape, device=device, dtype=torch.bfloat16)
        angles = torch.outer(torch.arange(PREFILL, device=device).float(),
                             5e5 ** (-torch.arange(0, HEAD_DIM, 2, device=device).float() / HEAD_DIM))
        self.cos, self.sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def rotate(self, x: Any, position: int) -> Any:
        n = x.shape[2]
        cos, sin = self.cos[position:position + n], self.sin[position:position + n]
        a, b = x.chunk(2, -1)
        return self.torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, ids: Any, position: int) -> Any:
        functional = self.torch.nn.functional
        n = ids.shape[0]
        kv = KV_HEADS * HEAD_DIM
        x = self.embedding[ids]
        for index, layer in enumerate(self.layers):
            q, k, v = functional.linear(functional.rms_norm(x, (HIDDEN,), layer["norm1"], 1e-5), layer["qkv"]).split(
                (HIDDEN, kv, kv), -1)
            q, k, v = (part.view(1, n, -1, HEAD_DIM).transpose(1, 2) for part in (q, k, v))
            self.cache[index, 0, :, :, position:position + n] = self.rotate(k, position)
            self.cache[index, 1, :, :, position:position + n] = v
            keys, values = self.cache[index, 0, :, :, :position + n], self.cache[index, 1, :, :, :position + n]
            seen = functional.scaled_dot_product_attention(self.rotate(q, position), keys, values, is_causal=n > 1,
                                                           enable_gqa=True)
            x = x + functional.linear(seen.transpose(1, 2).reshape(n, HIDDEN), layer["o"])
            gate, up = functional.linear(functional.rms_norm(x, (HIDDEN,), layer["norm2"], 1e-5), layer["gate_up"]).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, layer["down"])
        return functional.linear(functional.rms_norm(x[-1:], (HIDDEN,), self.norm, 1e-5), self.head)


def rates(torch: Any, device: str, prefill: Callable[[], Any], step: Callable[[int], Any]) -> Dict[str, float]:
    def steps() -> None:
        for i in range(STEPS):
            step(CONTEXT + i)
    found = {}
    for what, tokens, call, repeats in (("prefill", PREFILL, prefill, 3), ("decode", STEPS, steps, 1)):
        seconds, found[f"{what}_spread"] = twice(lambda: timed(torch, device, call, repeats))
        found[what] = tokens / seconds
    return found


def measure_torch(torch: Any, device: str, layers: int) -> Dict[str, Any]:
    model = TorchLlama(torch, device, layers)
    ids = torch.arange(PREFILL, device=device) % VOCAB
    with torch.inference_mode():
        found: Dict[str, Any] = rates(torch, device, lambda: model.forward(ids, 0),
                                      lambda at: model.forward(ids[:1], at).argmax())
    return {**found, "version": torch.__version__}


def measure_gemm(torch: Any, device: str) -> Dict[str, float]:
    """The rate of a bf16 product of random numbers."""
    a, b = (torch.randn(shape, device=device, dtype=torch.bfloat16) for shape in ((PREFILL, HIDDEN), (FFN, HIDDEN)))
    with torch.inference_mode():
        seconds, spread = twice(lambda: timed(torch, device, lambda: torch.nn.functional.linear(a, b), 9))
    return {"tflops": 2e-12 * PREFILL * HIDDEN * FFN / seconds, "spread": spread}


def measure_attention(torch: Any, device: str) -> Dict[str, Dict[str, float]]:
    """Seconds of causal attention over 8,192 tokens, by the library that does it."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    n = 8192 if device == "cuda" else 64
    q = torch.randn(1, HEADS, n, HEAD_DIM, device=device, dtype=torch.bfloat16)
    k, v = (torch.randn(1, KV_HEADS, n, HEAD_DIM, device=device, dtype=torch.bfloat16) for _ in range(2))
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    found = {}
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
        try:
            with sdpa_kernel(backend), torch.inference_mode():
                seconds, spread = twice(lambda: timed(torch, device, lambda: torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=True), 5))
                found[name] = {"seconds": seconds, "spread": spread}
        except RuntimeError:
            continue  # not in this build of PyTorch
    return found


def measure_transformers(torch: Any, device: str, layers: int) -> Dict[str, Any]:
    import transformers
    config = transformers.LlamaConfig(hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=layers,
                                      num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, vocab_size=VOCAB,
                                      max_position_embeddings=8192, attn_implementation="sdpa")
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = transformers.LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    ids = (torch.arange(PREFILL, device=device) % VOCAB)[None]
    with torch.inference_mode():
        cache = model(ids[:, :CONTEXT], use_cache=True).past_key_values
        def step(_: int) -> None:
            model(ids[:, :1], past_key_values=cache, use_cache=True).logits.argmax()
        found: Dict[str, Any] = rates(torch, device, lambda: model(ids, use_cache=True, logits_to_keep=1), step)
    return {**found, "version": transformers.__version__}


def main() -> None:
    global HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB, PREFILL, CONTEXT, STEPS
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a rehearsal of seconds")
    options = parser.parse_args()
    layers = LAYERS
    if options.small:
        HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB, PREFILL, CONTEXT, STEPS, layers = 64, 128, 4, 2, 16, 256, 64, 16, 4, 2
    parts: List[Tuple[str, Callable[[Any], Any]]] = [
        ("gemm", lambda torch: measure_gemm(torch, options.device)),
        ("torch", lambda torch: measure_torch(torch, options.device, layers)),
        ("attention_8k", lambda torch: measure_attention(torch, options.device)),
        ("transformers", lambda torch: measure_transformers(torch, options.device, layers))]
    for name, part in parts:
        try:
            import torch
            answer = part(torch)
            if options.device == "cuda":
                torch.cuda.empty_cache()
        except Exception as error:  # whatever a peer does is its reason, and the others go on
            answer = {} if name in ("gemm", "attention_8k") else {"reason": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps({name: answer}), flush=True)


if __name__ == "__main__":
    main()
