//! A machine without an Orin: one clear error.

use std::path::Path;

use nix::errno::Errno;
use tegra::Error;
use tegra::error::Node;
use tegra::orin::Orin;

#[test]
fn a_machine_without_the_nodes_gets_a_clear_error() {
    if Path::new("/dev/nvmap").exists() {
        println!("skipped: this machine has /dev/nvmap");
        return;
    }
    let error = Orin::open().expect_err("there is no Orin");
    assert!(matches!(error, Error::Open { node: Node::Nvmap, errno: Errno::ENOENT }), "{error:?}");
    let message = error.to_string();
    assert!(message.starts_with("/dev/nvmap cannot be opened: No such file"), "{message}");
    assert!(message.contains("not a Jetson Orin"), "{message}");
    assert_eq!(message.lines().count(), 1);
}
