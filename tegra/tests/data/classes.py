"""Creates classes.csv from NVIDIA's class headers.

Usage: classes.py CLASSES > classes.csv, with CLASSES the folder `classes` of open-gpu-doc.
"""

import re
import sys

HEADERS = {
    "c76f": ("host/clc76f.h", "NVC76F_"),
    "c7b5": ("dma-copy/clc7b5.h", "NVC7B5_"),
    "c7c0": ("compute/clc7c0.h", "NVC7C0_"),
    "qmd-v03_00": ("compute/clc7c0qmd.h", "NVC7C0_QMDV03_00_"),
}

# Array lengths, which the headers lack: the words of a QMD, the constant banks, and
# otherwise the space up to the next method.
COUNTS = {
    "LOAD_INLINE_QMD_DATA": 64,
    "SET_SCG_COMPUTE_SCHEDULING_PARAMETERS": 16,
    "SET_MME_SHADOW_SCRATCH": 256,
    "CALL_MME_MACRO": 256,
    "CALL_MME_DATA": 256,
}

# Numbers excluded from the values of their field: the header names not all of them, they apply to one
# operation only, or they are an older name of another.
OTHER = (
    "SET_OBJECT_ENGINE_",
    "MEM_OP_D_ACCESS_COUNTER_CLR_",
    "MEM_OP_D_MMU_OPERATION_TYPE_",
    "MEM_OP_B_OPERATION_",
    "WFI_SCOPE_CURRENT_SCG_TYPE",
    "NUMBER_OF_",
    "GP_ENTRY__",
    "DMA_NOP",
)

# `YIELD`'s third value is in the PBDMA manual of GA100, not in the header.
AFTER = {"YIELD_OP_NOP": ("c76f", "value", "YIELD_OP_RUNLIST_TIMESLICE", 2)}

DEFINE = re.compile(r"#define\s+(\w+?)(?:\([ij]\))?\s+(.*?)\s*(?://.*)?$")


def rows(name, lines, prefix):
    """One row for each definition: a method, a field of it, a value of that, or another number."""
    field = None
    for match in filter(None, map(DEFINE.match, lines)):
        if not match[1].startswith(prefix) or match[1].endswith("_TYPEDEF"):
            continue
        key, text = match[1].removeprefix(prefix), match[2]
        numbers = [int(number, 0) for number in re.findall(r"0x[0-9a-fA-F]+|\d+", text)]
        array = re.search(r"\([ij]\)", text)
        stride, count = (numbers[1], COUNTS.get(key, 8)) if array else ("", "")
        if ":" in text:
            field = key
            yield name, "field", key, numbers[0], numbers[2 if array else 1], stride, count
        elif key.startswith(OTHER):
            yield name, "number", key, numbers[0], "", "", ""
        elif field and key.startswith(f"{field}_"):
            yield name, "value", key, numbers[0], "", "", ""
        else:
            yield name, "method", key, numbers[0], "", stride, count
        if key in AFTER:
            yield *AFTER[key], "", "", ""


print("class,kind,name,high_or_number,low,stride,count")
for name, (path, prefix) in HEADERS.items():
    with open(f"{sys.argv[1]}/{path}") as lines:
        # The push-buffer formats name one field twice.
        for row in dict.fromkeys(rows(name, lines, prefix)):
            print(*row, sep=",")
