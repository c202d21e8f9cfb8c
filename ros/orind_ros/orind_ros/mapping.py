"""Mapping between tensors of a control loop and fields of messages: `NAME=TOPIC:PACKAGE/msg/TYPE.FIELD,FIELD`."""

import importlib
import re

_FORM = re.compile(r"^([^=:]+)=([^=:\s]+):(\w+)/msg/(\w+)\.([\w.,]+)$")


class Mapping:
    """One topic, and the fields of its messages that a tensor consists of."""

    def __init__(self, text):
        found = _FORM.match(text)
        if not found:
            raise ValueError(f"{text}: write NAME=TOPIC:PACKAGE/msg/TYPE.FIELD, such as "
                             "observation=/joint_states:sensor_msgs/msg/JointState.position,velocity")
        self.name, self.topic, package, kind, fields = found.groups()
        self.fields = [field.split(".") for field in fields.split(",")]
        try:
            self.type = getattr(importlib.import_module(f"{package}.msg"), kind)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{text}: there is no message {package}/msg/{kind}: {error}") from error
        for field in self.fields:
            try:
                _reach(self.type(), field)
            except AttributeError as error:
                raise ValueError(f"{text}: the message has no field {'.'.join(field)}") from error

    def read(self, message):
        """Returns the numbers of all fields, one after the other."""
        values = []
        for field in self.fields:
            value = _reach(message, field)
            if _is_number(value):
                values.append(float(value))
            else:
                values.extend(float(one) for one in value)
        return values

    def write(self, values):
        """Returns a message with these numbers: all in its one field, or one in each field."""
        message = self.type()
        if len(self.fields) == 1 and not _is_number(_reach(message, self.fields[0])):
            _store(message, self.fields[0], list(values))
            return message
        if len(values) != len(self.fields):
            raise ValueError(f"{self.name} has {len(values)} values, and {self.topic} {len(self.fields)} fields")
        for field, value in zip(self.fields, values):
            _store(message, field, value)
        return message


def _is_number(value):
    return isinstance(value, (int, float))


def _reach(message, field):
    for part in field:
        message = getattr(message, part)
    return message


def _store(message, field, value):
    setattr(_reach(message, field[:-1]), field[-1], value)
