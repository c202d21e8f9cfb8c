# A Jetson AGX Orin developer kit that serves a model, with jetpack-nixos. Its flake:
#
#     {
#       inputs = {
#         nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";
#         jetpack.url = "github:anduril/jetpack-nixos";
#         jetpack.inputs.nixpkgs.follows = "nixpkgs";
#         orind.url = "github:orind/orind";
#         orind.inputs.nixpkgs.follows = "nixpkgs";
#       };
#       outputs = { nixpkgs, jetpack, orind, ... }: {
#         nixosConfigurations.orin = nixpkgs.lib.nixosSystem {
#           modules = [
#             jetpack.nixosModules.default
#             orind.nixosModules.default
#             ./agx-orin.nix
#             ./hardware-configuration.nix
#           ];
#         };
#       };
#     }
{
  # From jetpack-nixos: the kernel of L4T, nvgpu and nvmap, the firmware, the device nodes.
  hardware.nvidia-jetpack = {
    enable = true;
    som = "orin-agx";
    carrierBoard = "devkit";
    majorVersion = "6"; # L4T r36.4
    maxClock = true; # jetson_clocks: the governor reacts slowly to a load of many short steps
  };
  # Mode 0 is MAXN. The factory default, 30 W, turns off half of the GPU's SMs.
  services.nvpmodel.profileNumber = 0;

  # Installs libcuda below /run/opengl-driver/lib. The nv backend, which `auto` prefers, does not need it.
  hardware.graphics.enable = true;

  services.orind = {
    enable = true;
    users = [ "alice" ];
    settings = {
      model = "llama-3.2-1b-q6_k.gguf"; # in /var/lib/orind/models
      context = 8192;
      slots = 2;
    };
  };
  users.users.alice.isNormalUser = true;
}
