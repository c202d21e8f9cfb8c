//! Messages between the daemon and a worker: a tag, the length of the contents, the contents.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// Maximum size of a message in bytes: the tokens of a large vocabulary.
const SIZE: usize = 64 << 20;

/// Meaning of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u8)]
pub(crate) enum Tag {
    /// To the worker: the tokens of a vocabulary.
    Tokens,
    /// To the worker, with a socket: serve a constraint on it, in a process of its own.
    Open,
    /// To a constraint: a [`Grammar`](crate::Grammar) as JSON.
    Compile,
    /// To a constraint: a token that the answer continues with.
    Accept,
    /// To a constraint, with a socket: serve a copy of the state on it.
    Duplicate,
    /// From a constraint: success.
    Done,
    /// From a constraint: mask of the next token, in words of 32 bits.
    Mask,
    /// From a constraint: text of an error.
    Failed,
    /// From a constraint, with a descriptor of its process.
    Process,
}

impl Tag {
    const ALL: [Self; 9] = [
        Self::Tokens,
        Self::Open,
        Self::Compile,
        Self::Accept,
        Self::Duplicate,
        Self::Done,
        Self::Mask,
        Self::Failed,
        Self::Process,
    ];
}

/// A received message.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) tag: Tag,
    pub(crate) contents: Vec<u8>,
    pub(crate) descriptor: Option<OwnedFd>,
}

/// Bytes in front of the contents.
pub(crate) const fn header(tag: Tag, size: usize) -> [u8; 5] {
    let [a, b, c, d] = (size as u32).to_le_bytes();
    [tag as u8, a, b, c, d]
}

/// Sends a message.
pub(crate) fn send(mut stream: &UnixStream, tag: Tag, contents: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(5 + contents.len());
    bytes.extend_from_slice(&header(tag, contents.len()));
    bytes.extend_from_slice(contents);
    stream.write_all(&bytes)
}

/// Sends a message without contents and with a descriptor.
pub(crate) fn send_descriptor(
    stream: &UnixStream,
    tag: Tag,
    descriptor: &impl AsRawFd,
) -> io::Result<()> {
    let header = header(tag, 0);
    let descriptors = [descriptor.as_raw_fd()];
    let control = [ControlMessage::ScmRights(&descriptors)];
    let (bytes, flags) = ([IoSlice::new(&header)], MsgFlags::MSG_NOSIGNAL);
    let sent = sendmsg::<()>(stream.as_raw_fd(), &bytes, &control, flags, None)?;
    if sent == header.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives a message; `None` if the other side has closed the socket.
pub(crate) fn receive(mut stream: &UnixStream) -> io::Result<Option<Frame>> {
    let mut header = [0; 5];
    let mut space = nix::cmsg_space!([std::os::fd::RawFd; 1]);
    let (read, descriptor) = {
        let mut bytes = [IoSliceMut::new(&mut header)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<()>(stream.as_raw_fd(), &mut bytes, Some(&mut space), flags)?;
        let mut descriptor = None;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(descriptors) = control {
                // SAFETY: the kernel has just created these descriptors for this process; nothing
                // else owns them.
                let owned = descriptors.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
                descriptor = owned.collect::<Vec<_>>().pop();
            }
        }
        (message.bytes, descriptor)
    };
    if read == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut header[read..])?;
    let [tag, size @ ..] = header;
    let size = u32::from_le_bytes(size) as usize;
    let tag = Tag::ALL.get(usize::from(tag)).copied().filter(|_| size <= SIZE);
    let tag = tag.ok_or(io::ErrorKind::InvalidData)?;
    let mut contents = vec![0; size];
    stream.read_exact(&mut contents)?;
    Ok(Some(Frame { tag, contents, descriptor }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_their_positions() {
        for (position, tag) in Tag::ALL.into_iter().enumerate() {
            assert_eq!(tag as usize, position);
        }
    }

    #[test]
    fn messages_arrive_with_their_descriptors() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        send(&ours, Tag::Accept, &7u32.to_le_bytes()).unwrap();
        send_descriptor(&ours, Tag::Open, &ours).unwrap();
        let frame = receive(&theirs).unwrap().unwrap();
        assert_eq!((frame.tag, &*frame.contents), (Tag::Accept, &[7, 0, 0, 0][..]));
        assert!(frame.descriptor.is_none());
        let frame = receive(&theirs).unwrap().unwrap();
        assert_eq!((frame.tag, frame.contents.len()), (Tag::Open, 0));
        assert!(frame.descriptor.is_some());
        drop(frame);
        for bytes in [&[99, 0, 0, 0, 0][..], &[0, 0xff, 0xff, 0xff, 0xff]] {
            (&ours).write_all(bytes).unwrap();
            assert_eq!(receive(&theirs).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        drop(ours);
        assert!(receive(&theirs).unwrap().is_none());
    }
}
