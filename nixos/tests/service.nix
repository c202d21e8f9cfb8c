# A machine with the service, on the CPU with a synthetic model: it needs neither a GPU nor a model file.
{
  name = "orind";

  nodes.machine =
    { pkgs, ... }:
    {
      services.orind = {
        enable = true;
        users = [ "alice" ];
        settings = {
          model = "synthetic:tiny-llama:q8_0";
          backend = "cpu";
          context = 256;
        };
      };
      users.users = {
        alice.isNormalUser = true;
        mallory.isNormalUser = true;
      };
      environment.systemPackages = [ pkgs.curl ];
      virtualisation.memorySize = 2048;
    };

  testScript = ''
    ask = "curl -fsS --unix-socket /run/orind/orind.sock http://localhost/v1/models"

    machine.wait_for_unit("orind.socket")
    with subtest("who is in the group may ask, others may not"):
        machine.succeed(f"su alice -c '{ask}' | grep tiny-llama")
        machine.fail(f"su mallory -c '{ask}'")
    with subtest("the daemon is ready and says so"):
        machine.wait_for_unit("orind.service")
        machine.succeed("su alice -c 'orinctl generate -n 8 hello'")
    with subtest("killed, it is back"):
        machine.succeed("systemctl kill --signal=KILL orind.service")
        machine.wait_until_succeeds(ask)
    with subtest("nothing listens on the network"):
        machine.fail("ss -Hltnp | grep orind")
    machine.succeed("systemctl stop orind.socket orind.service")
  '';
}
