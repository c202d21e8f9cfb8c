"""Classes of messages made from their definitions, with the checks of those that rosidl generates for Python."""

import array
import glob
import os
import re
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))
INTERFACES = os.path.join(HERE, "..", "orind_interfaces")

# Messages of other packages, cut to the fields that the nodes and tests use.
COMMON = {
    "builtin_interfaces/Time": "int32 sec\nuint32 nanosec",
    "std_msgs/Header": "builtin_interfaces/Time stamp\nstring frame_id",
    "std_msgs/Float32MultiArray": "float32[] data",
    "std_msgs/Float64MultiArray": "float64[] data",
    "std_msgs/Float32": "float32 data",
    "sensor_msgs/JointState": "std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort",
    "geometry_msgs/Vector3": "float64 x\nfloat64 y\nfloat64 z",
    "geometry_msgs/Twist": "Vector3 linear\nVector3 angular",
    "diagnostic_msgs/KeyValue": "string key\nstring value",
    "diagnostic_msgs/DiagnosticStatus": "byte OK=0\nbyte WARN=1\nbyte ERROR=2\nbyte STALE=3\nbyte level\nstring name\n"
                                        "string message\nstring hardware_id\nKeyValue[] values",
    "diagnostic_msgs/DiagnosticArray": "std_msgs/Header header\nDiagnosticStatus[] status",
}

INTEGERS = {f"{sign}int{bits}": (0 if sign else -(1 << bits - 1), (1 << bits if sign else 1 << bits - 1) - 1)
            for sign in ("", "u") for bits in (8, 16, 32, 64)}
CODES = {"float32": "f", "float64": "d", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i",
         "uint32": "I", "int64": "q", "uint64": "Q"}
_TYPE = re.compile(r"^([\w/]+)(\[(\d*)\])?$")
_classes = {}


class Field:
    def __init__(self, package, text, default):
        found = _TYPE.match(text)
        if not found:
            raise ValueError(f"{text} is no type")
        kind, self.is_array = found.group(1), found.group(2) is not None
        self.kind = kind if kind in CODES or kind in ("string", "bool", "byte") else (kind if "/" in kind else f"{package}/{kind}")
        self.default = None if default is None else self.literal(default)

    def literal(self, text):
        if self.kind == "string":
            return text.strip("\"'")
        if self.kind == "byte":
            return bytes([int(text)])
        return float(text) if self.kind.startswith("float") else int(text)

    def initial(self):
        if self.is_array:
            return array.array(CODES[self.kind]) if self.kind in CODES else []
        if self.default is not None:
            return self.default
        if "/" in self.kind:
            return _classes[self.kind]()
        return {"string": "", "bool": False, "byte": b"\0"}.get(self.kind, 0.0 if self.kind.startswith("float") else 0)

    def fits(self, value):
        """Whether rosidl's classes accept the value."""
        if self.kind == "string":
            return isinstance(value, str)
        if self.kind == "bool":
            return isinstance(value, bool)
        if self.kind == "byte":
            return isinstance(value, bytes) and len(value) == 1
        if self.kind.startswith("float"):
            return isinstance(value, float) and (self.kind == "float64" or abs(value) <= 3.402823466e38)
        if self.kind in INTEGERS:
            low, high = INTEGERS[self.kind]
            return isinstance(value, int) and low <= value <= high
        return isinstance(value, _classes[self.kind])

    def store(self, value):
        if not self.is_array:
            assert self.fits(value), f"{value!r} is no {self.kind}"
            return value
        if isinstance(value, array.array):
            assert value.typecode == CODES.get(self.kind), f"an array of {value.typecode} is none of {self.kind}"
            return value
        assert isinstance(value, (list, tuple)) and all(map(self.fits, value)), f"{value!r} is no list of {self.kind}"
        return array.array(CODES[self.kind], value) if self.kind in CODES else list(value)


class Message:
    FIELDS = {}

    def __init__(self, **values):
        for name, field in self.FIELDS.items():
            object.__setattr__(self, name, field.initial())
        for name, value in values.items():
            setattr(self, name, value)

    def __setattr__(self, name, value):
        if name not in self.FIELDS:
            raise AttributeError(f"{type(self).__name__} has no field {name}")
        object.__setattr__(self, name, self.FIELDS[name].store(value))


def define(package, name, text):
    """Makes the class of a definition."""
    fields, constants = {}, {}
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        constant = re.match(r"^(\w+)\s+([A-Z][A-Z0-9_]*)\s*=\s*(.+)$", line)
        if constant:
            constants[constant.group(2)] = Field(package, constant.group(1), None).literal(constant.group(3))
        elif line:
            kind, field, *default = line.split(None, 2)
            if not re.match(r"^[a-z][a-z0-9_]*$", field):
                raise ValueError(f"{field} is no name of a field")
            fields[field] = Field(package, kind, default[0] if default else None)
    made = type(name, (Message,), {"FIELDS": fields, **constants})
    _classes[f"{package}/{name}"] = made
    return made


def _module(name, **content):
    module = sys.modules.setdefault(name, types.ModuleType(name))
    module.__dict__.update(content)
    if "." in name:
        parent, _, child = name.rpartition(".")
        setattr(_module(parent), child, module)
    return module


def install():
    """Makes all modules of messages importable."""
    for path, text in COMMON.items():
        package, _, name = path.partition("/")
        _module(f"{package}.msg", **{name: define(package, name, text)})
    package = "orind_interfaces"
    for kind in ("msg", "srv", "action"):
        for path in sorted(glob.glob(os.path.join(INTERFACES, kind, "*"))):
            name = os.path.basename(path).partition(".")[0]
            with open(path) as file:
                texts = re.split(r"^---$", file.read(), flags=re.M)
            parts = {"msg": [name], "srv": ["Request", "Response"], "action": ["Goal", "Result", "Feedback"]}[kind]
            if len(texts) != len(parts):
                raise ValueError(f"{path} has {len(texts)} parts, not {len(parts)}")
            classes = {part: define(package, part if kind == "msg" else f"{name}_{part}", text)
                       for part, text in zip(parts, texts)}
            made = classes[name] if kind == "msg" else type(name, (), classes)
            _module(f"{package}.{kind}", **{name: made})
