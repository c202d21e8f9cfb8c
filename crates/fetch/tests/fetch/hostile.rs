//! Folders that other users can write to, servers without an end, and listings that mean more than
//! they contain.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, lchown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use fetch::{Client, Folder};
use nix::sys::stat::Mode;
use nix::unistd::{geteuid, mkfifo};
use orind_testing::loopback::{Reply, Server};

use super::{Home, TAG, broken, gguf, in_turn};

/// A user other than the one who pulls.
const OTHER: u32 = 12_345;

fn serving(bytes: &[u8]) -> Server {
    let bytes = bytes.to_vec();
    Server::start(move |request| Reply::file(request, &bytes, TAG))
}

/// Pulls `m.gguf` into a folder; returns the error.
fn pull(server: &Server, folder: &Path) -> Result<(), String> {
    let client = Client::new(None, None);
    let name = server.url("/m.gguf").parse().unwrap();
    let files = client.files(&name, Folder::Flat(folder), None).unwrap();
    let fetched = client.fetch(&files[0], false, &mut |_| {});
    fetched.map(drop).map_err(|error| error.to_string())
}

#[test]
fn links_in_place_of_partial_files_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, precious) = (dir.path().join("models"), dir.path().join("precious"));
    fs::create_dir(&folder).unwrap();
    let server = serving(&gguf(1, 1000));
    for name in [".m.gguf.part", ".m.gguf.from"] {
        let link = folder.join(name);
        let kinds: [&dyn Fn(); 3] = [
            &|| symlink(&precious, &link).unwrap(),
            &|| fs::hard_link(&precious, &link).unwrap(),
            &|| mkfifo(&link, Mode::S_IRWXU).unwrap(),
        ];
        for make in kinds {
            fs::write(&precious, "precious").unwrap();
            make();
            let error = pull(&server, &folder).unwrap_err();
            assert!(error.contains(name) && error.contains("is a link or another"), "{error}");
            assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
            let _ = fs::remove_file(&link);
        }
    }
    // The name of the file itself is replaced, not what it leads to.
    symlink(dir.path().join("absent"), folder.join("m.gguf")).unwrap();
    pull(&server, &folder).unwrap();
    assert!(!dir.path().join("absent").exists());
    assert_eq!(fs::read(folder.join("m.gguf")).unwrap(), gguf(1, 1000));
    assert!(fs::symlink_metadata(folder.join("m.gguf")).unwrap().is_file());
}

#[test]
fn links_of_other_users_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (home, foreign) = (dir.path().join("home"), dir.path().join("foreign"));
    fs::create_dir_all(home.join("real")).unwrap();
    fs::create_dir(&foreign).unwrap();
    symlink("real", home.join("link")).unwrap();
    let server = serving(&gguf(1, 1000));
    pull(&server, &home.join("link/new/folder")).unwrap();
    assert!(home.join("real/new/folder/m.gguf").is_file());
    if !geteuid().is_root() {
        eprintln!("links of other users are not tested: only root can make them");
        return;
    }
    // A link of another user, and a link in a folder of another user.
    lchown(home.join("link"), Some(OTHER), Some(OTHER)).unwrap();
    let error = pull(&server, &home.join("link/other")).unwrap_err();
    assert!(error.contains("home/link is a link"), "{error}");
    symlink(&home, foreign.join("models")).unwrap();
    lchown(&foreign, Some(OTHER), Some(OTHER)).unwrap();
    let error = pull(&server, &foreign.join("models/other")).unwrap_err();
    assert!(error.contains("foreign/models is a link"), "{error}");
    assert!(!home.join("other").exists() && !home.join("real/other").exists());
    // A partial file of another user, who could write to it later.
    let part = foreign.join(".m.gguf.part");
    fs::write(&part, gguf(2, 500)).unwrap();
    lchown(&part, Some(OTHER), Some(OTHER)).unwrap();
    pull(&server, &foreign).unwrap();
    assert_eq!(fs::read(foreign.join("m.gguf")).unwrap(), gguf(1, 1000));
    assert_eq!(fs::metadata(foreign.join("m.gguf")).unwrap().uid(), 0);
}

#[test]
fn damaged_notes_of_a_partial_file_cost_a_restart() {
    let bytes = gguf(3, 1000);
    for note in ["\"a\"\nHost: x", "", "\u{1b}", &"x".repeat(1 << 20)] {
        let mut home = Home::new();
        let server = Server::start(in_turn(vec![broken(&bytes, TAG, 500)]));
        let url = server.url("/m.gguf");
        home.fails(&url);
        let from = home.files().into_iter().find(|file| file.ends_with(".from")).unwrap();
        fs::write(home.dir.path().join(&from), note).unwrap();
        let part = from.replace(".from", ".part");
        fs::write(home.dir.path().join(part), gguf(4, 700)).unwrap();
        drop(server);
        let again = serving(&bytes);
        let folder = home.dir.path().join(from).parent().unwrap().to_owned();
        pull(&again, &folder).unwrap();
        assert_eq!(fs::read(folder.join("m.gguf")).unwrap(), bytes);
    }
}

/// A file system of its own, which ends with the value.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn of(mebibytes: u64) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={mebibytes}m");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(dir.path());
        let mounted = geteuid().is_root() && mount.output().is_ok_and(|out| out.status.success());
        mounted.then_some(Self(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[test]
fn a_disk_is_not_filled() {
    let Some(disk) = SmallDisk::of(16) else {
        eprintln!("full disks are not tested: only root can mount one");
        return;
    };
    let free = || nix::sys::statvfs::statvfs(disk.0.path()).unwrap();
    let before = free().blocks_available();
    let body = gguf(5, 20 << 20);
    let chunk = [format!("{:x}\r\n", body.len()).as_bytes(), &body].concat();
    let endless =
        Server::start(move |_| Reply::new(200).header("Transfer-Encoding", "chunked").raw(&chunk));
    // The length is unknown, so the file may never end: nothing of it stays.
    let error = pull(&endless, disk.0.path()).unwrap_err();
    assert!(error.contains("not enough disk space") && error.contains("must stay free"), "{error}");
    assert_eq!(fs::read_dir(disk.0.path()).unwrap().count(), 0);
    assert_eq!(free().blocks_available(), before);
    // 15 MiB fit, but not with the eighth that stays free.
    for (mebibytes, fits) in [(15, false), (13, true)] {
        let pulled = pull(&serving(&gguf(6, mebibytes << 20)), disk.0.path());
        assert_eq!(pulled.is_ok(), fits, "{mebibytes} MiB: {pulled:?}");
    }
}

/// A hub whose repositories have these files.
fn hub(files: &[String]) -> (Server, Client) {
    let files: Vec<String> =
        files.iter().map(|file| format!("{{\"rfilename\":\"{file}\"}}")).collect();
    let body = format!("{{\"siblings\":[{}]}}", files.join(","));
    let server = Server::start(move |_| Reply::new(200).body(body.as_bytes()));
    let client = Client::new(Some(&server.url("")), None);
    (server, client)
}

#[test]
fn long_listings_take_no_long_time() {
    let begin = Instant::now();
    let listed = |files: &[String], name: &str| {
        let (_server, client) = hub(files);
        let found = client.files(&name.parse().unwrap(), Folder::Flat(Path::new("x")), None);
        found.map(|files| files.len()).map_err(|error| error.to_string())
    };
    let parts = |of: &dyn Fn(usize) -> String, count: usize| (0..count).map(of).collect::<Vec<_>>();
    let bomb = parts(&|n| format!("m{n}-00001-of-99999.gguf"), 10_000);
    let error = listed(&bomb, "o/r").unwrap_err();
    assert!(error.contains("has no Q4_K_M") && error.contains("and 9980 more"), "{error}");
    assert!(error.len() < 1000, "{error}");
    for name in ["o/r", "o/r/m0-00001-of-99999.gguf"] {
        let error = listed(&bomb[..1], name).unwrap_err();
        assert!(error.contains("lacks m0-00002-of-99999.gguf"), "{error}");
    }
    let error = listed(&parts(&|n| format!("{n}.gguf"), 10_001), "o/r").unwrap_err();
    assert!(error.contains("lists more than 10000 files"), "{error}");
    // Numbers that no part has.
    for number in ["00001-of-00000", "00000-of-00001", "00002-of-00001"] {
        assert_eq!(listed(&[format!("m-{number}.gguf")], "o/r"), Ok(1));
    }
    let error = Home::new().fails("http://127.0.0.1:9/m-00001-of-99999.gguf");
    assert!(error.contains("at most 1000 are supported"), "{error}");
    assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
}

#[test]
fn a_loop_of_links_in_the_cache_ends() {
    let home = Home::new();
    let folder = home.dir.path().join("hf.co/o/r");
    fs::create_dir_all(&folder).unwrap();
    for name in ["a", "b"] {
        symlink(".", folder.join(name)).unwrap();
    }
    fs::write(folder.join("m.gguf"), gguf(7, 10)).unwrap();
    let found = fetch::find(&"o/r".parse().unwrap(), home.dir.path());
    assert_eq!(found, Some(folder.join("m.gguf")));
}
