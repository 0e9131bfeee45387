"""Parses messages with the CloudEvents SDK for Python: a JSON list on standard input, a JSON list of events on standard output."""

import base64
import json
import sys
from datetime import datetime, timedelta, timezone

from cloudevents.core.bindings import http, kafka
from cloudevents.core.formats.json import JSONFormat

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def parse(message):
    value = base64.b64decode(message["value"])
    headers = message["headers"]
    if message["protocol"] == "kafka":
        headers = {name: text.encode() for name, text in headers.items()}
        key = message["key"]
        return kafka.from_kafka(kafka.KafkaMessage(headers=headers, key=key, value=value), JSONFormat())
    return http.from_http(http.HTTPMessage(headers=headers, body=value), JSONFormat())


def shown(event):
    data = event.get_data()
    if isinstance(data, (bytes, bytearray)):
        data = {"base64": base64.b64encode(data).decode()}
    elif data is not None:
        data = {"value": data}
    time = event.get_time()
    return {
        "attributes": {name: str(value) for name, value in event.get_attributes().items() if name != "time"},
        "milliseconds": (time - EPOCH) // timedelta(milliseconds=1),
        "data": data,
    }


json.dump([shown(parse(message)) for message in json.load(sys.stdin)], sys.stdout)
