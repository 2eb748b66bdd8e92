// Validates each object of a JSON file against the schema of its kind: node validate.mjs OBJECTS.json, objects as
// {module, kind, object}. Prints what is wrong; exit code 1 if something is.
import { readFileSync } from "node:fs";

let wrong = 0;
for (const { module, kind, object } of JSON.parse(readFileSync(process.argv[2], "utf8"))) {
  const { [kind]: Model } = await import(module);
  try {
    new Model(object).validate();
  } catch (error) {
    wrong += 1;
    console.log(`${kind} ${object.metadata.name}: ${error.message}`);
  }
}
process.exit(wrong === 0 ? 0 : 1);
