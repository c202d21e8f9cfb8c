# A system that uses the service from the flake, like a user's own; builds the files that systemd and the
# daemon read.
{
  inputs.orind.url = "github:orind/orind";
  outputs =
    { orind, ... }:
    let
      inherit (orind.inputs) nixpkgs;
      pkgs = import nixpkgs { system = "x86_64-linux"; };
      inherit
        (nixpkgs.lib.nixosSystem {
          modules = [
            orind.nixosModules.default
            {
              nixpkgs = { inherit pkgs; };
              hardware.graphics.enable = true;
              services.orind = {
                enable = true;
                cuda.enable = true;
                clients = [ "192.168.7.0/24" ];
                settings = {
                  listen = "0.0.0.0:8080";
                  token_file = "/run/secrets/orind";
                  model = "synthetic:tiny-llama:q8_0";
                };
              };
            }
          ];
        })
        config
        ;
    in
    {
      packages.x86_64-linux.default = pkgs.runCommand "machine" { } ''
        mkdir $out
        cp ${config.environment.etc."orind/orind.toml".source} $out/orind.toml
        for package in ${toString config.systemd.packages}; do
          cp -r --no-preserve=mode $package/lib/systemd/system/. $out
        done
      '';
    };
}
