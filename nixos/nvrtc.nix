# NVRTC, NVIDIA's run-time compiler, in the version that reproduces the bytes of kernels/prebuilt: 12.6,
# the version of JetPack 6, from PyPI. Only people who change a kernel need it.
{
  lib,
  stdenvNoCC,
  fetchurl,
  unzip,
}:
let
  version = "12.6.85";
  inherit (stdenvNoCC.hostPlatform) system;
  wheels = {
    aarch64-linux = {
      folder = "48/ab/476146f59ff5ef5bd6e62c187097d859ea78b5752d19c6c3f9be5f90dafc";
      platform = "manylinux2014_aarch64.manylinux_2_17_aarch64";
      hash = "sha256-PzE09QljiCNzBjkBZXVU8jC+32A50wsJ9r5VxkyZOjc=";
    };
    x86_64-linux = {
      folder = "f5/31/ffb400c5ae99daf09687aa6c42831c5d824f71c4851363ed2a4a1ac52bab";
      platform = "manylinux2010_x86_64.manylinux_2_12_x86_64";
      hash = "sha256-gAknMIzMXdYkbT9h9/zvLtfsTlnhmQkNNg0yk/eL1aI=";
    };
  };
  wheel = wheels.${system} or (throw "orind-nvrtc: no wheel for ${system}");
in
stdenvNoCC.mkDerivation {
  pname = "orind-nvrtc";
  inherit version;

  src = fetchurl {
    url = "https://files.pythonhosted.org/packages/${wheel.folder}/nvidia_cuda_nvrtc_cu12-${version}-py3-none-${wheel.platform}.whl";
    inherit (wheel) hash;
  };
  nativeBuildInputs = [ unzip ];
  unpackCmd = "unzip -q $curSrc";
  sourceRoot = "nvidia/cuda_nvrtc";

  # It needs only libc, and finds its second library in its own directory.
  dontPatchELF = true;
  dontStrip = true;
  installPhase = ''
    runHook preInstall
    install -Dm444 -t $out/lib lib/libnvrtc.so.12 lib/libnvrtc-builtins.so.12.6
    runHook postInstall
  '';

  meta = {
    description = "NVIDIA's run-time compiler for CUDA C++";
    homepage = "https://docs.nvidia.com/cuda/nvrtc/";
    license = lib.licenses.unfree;
    sourceProvenance = [ lib.sourceTypes.binaryNativeCode ];
    platforms = lib.attrNames wheels;
  };
}
