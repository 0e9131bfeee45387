// Parses messages with the CloudEvents SDK for JavaScript: a JSON list on standard input, a JSON list of events on
// standard output.
const { HTTP, Kafka } = require("cloudevents");

function parse({ protocol, headers, key, value }) {
  const bytes = Buffer.from(value, "base64");
  if (protocol === "kafka") {
    return Kafka.toEvent({ headers, key, value: bytes, body: bytes });
  }
  // As web frameworks hand bodies over: text is a string.
  const isBinary = headers["content-type"] === "application/octet-stream";
  return HTTP.toEvent({ headers, body: isBinary ? bytes : bytes.toString() });
}

function shown(event) {
  const { data, data_base64, time, ...attributes } = event.toJSON();
  return {
    attributes,
    milliseconds: Date.parse(time),
    data: data_base64 !== undefined ? { base64: data_base64 } : data === undefined ? null : { value: data },
  };
}

let text = "";
process.stdin.on("data", (part) => (text += part));
process.stdin.on("end", () => process.stdout.write(JSON.stringify(JSON.parse(text).map(parse).map(shown))));
