// What a JSON Schema asks for, in the few words that a form can be drawn from.
//
// Rule kept here: what is not understood as a whole is not understood at all. Its kind is "json" then, so that whoever
// fills it in can say all that the schema allows.

/** A reference that leads to references further than this leads nowhere. */
const FURTHEST = 20;

/** One part: its kind, whether it may be null, the schema with nothing left to look up; choices have `options`. */
export function read(root, schema) {
  const { inner, nullable } = nonNull(root, resolved(root, schema));
  const options = choices(inner);
  if (options === null) return { schema: inner, nullable, kind: kindOf(inner) };
  const values = options.filter((one) => !isNull(one));
  return { schema: inner, nullable: nullable || values.length < options.length, kind: "choice", options: values };
}

/** What an object may have, by name; also what it has to have only if something else is said. */
export function properties(root, schema) {
  const conditional = [schema.then, schema.else, ...(schema.allOf || [])].filter(Boolean).map((one) => resolved(root, one));
  return Object.assign({}, ...conditional.map((one) => properties(root, one)), schema.properties);
}

const isNull = (option) => option.value === null;

function resolved(root, schema) {
  for (let n = 0; n < FURTHEST && typeof schema?.$ref === "string"; n++) {
    const { $ref, ...own } = schema;
    schema = { ...at(root, $ref), ...own };
  }
  return schema && typeof schema === "object" && schema.$ref === undefined ? schema : {};
}

/** What "#/$defs/Address" names. */
function at(root, ref) {
  const names = ref.split("/").slice(1).map((one) => decodeURIComponent(one).replaceAll("~1", "/").replaceAll("~0", "~"));
  return ref.startsWith("#") ? names.reduce((found, name) => found?.[name], root) : undefined;
}

/** The schema of what it is if it is not null. */
function nonNull(root, schema) {
  if (Array.isArray(schema.type) && schema.type.includes("null")) {
    const rest = schema.type.filter((one) => one !== "null");
    return { inner: { ...schema, type: rest.length === 1 ? rest[0] : rest }, nullable: true };
  }
  const { anyOf, oneOf, ...own } = schema;
  const several = anyOf || oneOf || [];
  const rest = several.filter((one) => one.type !== "null");
  if (rest.length === 1 && !(anyOf && oneOf)) {
    return { inner: { ...resolved(root, rest[0]), ...own }, nullable: several.length > 1 };
  }
  return { inner: schema, nullable: rest.length < several.length };
}

/** Values to choose from, each with its words; null if it is no choice. */
function choices(schema) {
  const worded = schema.oneOf || schema.anyOf;
  if (worded?.every((one) => one.const !== undefined)) return worded.map((one) => option(one.const, one.title));
  if (schema.const !== undefined) return [option(schema.const)];
  return Array.isArray(schema.enum) ? schema.enum.map((one) => option(one)) : null;
}

function option(value, title) {
  return { value, text: title || (typeof value === "string" ? value : JSON.stringify(value)) };
}

const SIMPLE = ["boolean", "number", "integer"];
/** From this many characters on a text has more than one line. */
const LONG = 120;

function kindOf(schema) {
  if (schema.anyOf || schema.oneOf || schema.not) return "json";
  if (SIMPLE.includes(schema.type)) return schema.type;
  if (schema.type === "string") return { date: "date", "date-time": "time" }[schema.format] || (isLong(schema) ? "area" : "text");
  if (schema.type === "array" && schema.items && !schema.prefixItems) return "list";
  if ((schema.type === "object" || schema.type === undefined) && schema.properties) return "object";
  return "json";
}

function isLong({ maxLength = 0, default: text = "" }) {
  return maxLength >= LONG || text.length >= LONG || text.includes("\n");
}
