#!/usr/bin/env python3
"""Rebuilds the vectors: kernels/*.cu -> *.cubin (NVRTC) -> *.txt (nvdisasm).

Needs the PyPI packages nvidia-cuda-nvrtc-cu12==12.6.85, nvidia-cuda-runtime-cu12==12.6.77 and
nvidia-cuda-nvdisasm in the Python that runs it. Usage: build.py [architecture ...], default sm_87;
build.py prebuilt takes one instruction of each shape out of the project's prebuilt cubins.
"""
import ctypes, glob, lzma, os, re, struct, subprocess, sys, sysconfig, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SITE = os.path.join(sysconfig.get_paths()["purelib"], "nvidia")
NVRTC = ctypes.CDLL(glob.glob(SITE + "/cuda_nvrtc/lib/libnvrtc.so.12")[0])
NVDISASM = glob.glob(SITE + "/cu13/bin/nvdisasm")[0]


def compile(source, architecture):
    program = ctypes.c_void_p()
    text = open(source, "rb").read()
    NVRTC.nvrtcCreateProgram(ctypes.byref(program), text, os.path.basename(source).encode(), 0, None, None)
    flags = [b"--gpu-architecture=" + architecture.encode(), b"-I" + SITE.encode() + b"/cuda_runtime/include"]
    failed = NVRTC.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
    size = ctypes.c_size_t()
    if failed:
        NVRTC.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        NVRTC.nvrtcGetProgramLog(program, log)
        sys.exit(log.value.decode())
    NVRTC.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    NVRTC.nvrtcGetCUBIN(program, cubin)
    return cubin.raw


def code_sections(cubin):
    start, = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    header = lambda i: struct.unpack_from("<IIQQQQIIQQ", cubin, start + i * size)
    strings = header(names)[4]
    for i in range(count):
        name, _, _, _, offset, length, *_ = header(i)
        name = cubin[strings + name:cubin.index(b"\0", strings + name)].decode()
        if name.startswith(".text."):
            yield name[6:], cubin[offset:offset + length]


def disassemble(code, architecture):
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(code)
        file.flush()
        text = subprocess.run([NVDISASM, "--binary", architecture.upper().replace("_", ""), "-hex", file.name],
                              check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;\s+/\* 0x([0-9a-f]{16}) \*/\s+/\* 0x([0-9a-f]{16}) \*/", text)
    return [(int(low, 16), int(high, 16), re.sub(r"\s+", " ", asm)) for asm, low, high in rows]


def shape(text):
    """An instruction without its guard and without which registers and numbers it names."""
    text = re.sub(r"^@!?U?P\w+ |\.reuse|!", "", text)
    name, _, operands = text.partition(" ")
    operands = re.sub(r"\b(U?R|U?P|S?B)\d+", r"\1", operands)
    return name + " " + re.sub(r"-?0x[0-9a-f]+|(?<![\w.])-?\d[\d.e+-]*|[+-](INF|QNAN) ?", "#", operands)


def prebuilt(architecture):
    """One instruction of each shape; a line with @ gives the next one's offset."""
    seen = set()
    with open(f"{HERE}/{architecture}/prebuilt.txt", "w") as out:
        for file in sorted(glob.glob(f"{HERE}/../../../../kernels/prebuilt/*.{architecture}.cubin.lzma")):
            for name, code in code_sections(lzma.open(file).read()):
                for index, (low, high, asm) in enumerate(disassemble(code, architecture)):
                    if shape(asm) not in seen:
                        seen.add(shape(asm))
                        out.write(f"@{index * 16:x}\n{low:016x} {high:016x} {asm}\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["prebuilt"]:
        sys.exit(prebuilt("sm_87"))
    for architecture in sys.argv[1:] or ["sm_87"]:
        for source in sorted(glob.glob(HERE + "/kernels/*.cu")):
            stem = f"{HERE}/{architecture}/{os.path.splitext(os.path.basename(source))[0]}"
            os.makedirs(os.path.dirname(stem), exist_ok=True)
            cubin = compile(source, architecture)
            open(stem + ".cubin", "wb").write(cubin)
            with open(stem + ".txt", "w") as out:
                for name, code in code_sections(cubin):
                    out.write(f"{name}\n")
                    rows = disassemble(code, architecture)
                    assert len(rows) * 16 == len(code), (name, len(rows), len(code))
                    for low, high, asm in rows:
                        out.write(f"{low:016x} {high:016x} {asm}\n")
