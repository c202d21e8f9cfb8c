//! REGISTER_BUFFER and GET_BUFFER_INFO: metadata that programs attach to a dma-buf.

use crate::driver::abi::ctrl::{GET_BUFFER_INFO, REGISTER_BUFFER};
use crate::driver::device::Device;
use crate::driver::dispatch::{Args, BAD_NESTED, Done, Handled};
use crate::driver::errno::refusals;
use crate::memory::Metadata;
use crate::user;

refusals! { "ctrl";
    SIZE = "REGISTER_BUFFER", EINVAL,
        "more than 256 bytes, or an unknown comptags_alloc_control",
        "os/linux/ioctl_ctrl.c:nvgpu_gpu_ioctl_register_buffer";
    CLOSED_FD = "REGISTER_BUFFER, GET_BUFFER_INFO", EBADF, "the fd is not open",
        "os/linux/ioctl_ctrl.c:nvgpu_gpu_ioctl_register_buffer";
    NOT_DMA_BUF = "REGISTER_BUFFER, GET_BUFFER_INFO", EINVAL, "the fd is no dma-buf",
        "os/linux/ioctl_ctrl.c:nvgpu_gpu_ioctl_register_buffer";
    AGAIN = "REGISTER_BUFFER", EINVAL,
        "registered before, without MODIFY now or without MUTABLE then",
        "os/linux/ioctl_ctrl.c:nvgpu_gpu_ioctl_register_buffer";
    COMPTAGS = "REGISTER_BUFFER", ENOMEM, "compression tags required; there are none here",
        "os/linux/ioctl_ctrl.c:nvgpu_handle_comptags_control";
}

const MUTABLE: u32 = 1 << 1;
const MODIFY: u32 = 1 << 2;

/// Source: os/linux/ioctl_ctrl.c:nvgpu_gpu_ioctl_register_buffer.
pub(super) fn register(device: &Device, args: &mut Args) -> Handled {
    const REQUIRED: u8 = 2;
    const MOST: u32 = 256;
    use REGISTER_BUFFER::{COMPTAGS_ALLOC_CONTROL, DMABUF_FD, FLAGS, METADATA_ADDR, METADATA_SIZE};
    let (fd, comptags) = (args.get(DMABUF_FD), args.get(COMPTAGS_ALLOC_CONTROL));
    let (address, bytes, flags) =
        (args.get(METADATA_ADDR), args.get(METADATA_SIZE), args.get(FLAGS));
    if bytes > MOST || comptags > REQUIRED {
        return Err(&SIZE);
    }
    let buffer = device.dma_buf(fd).map_err(|error| error.refused(&CLOSED_FD, &NOT_DMA_BUF))?;
    let mut metadata = buffer.metadata();
    if metadata.as_ref().is_some_and(|old| flags & MODIFY == 0 || !old.mutable) {
        return Err(&AGAIN);
    }
    let mut blob = vec![0; bytes as usize];
    user::read(address, &mut blob).map_err(|_| &BAD_NESTED)?;
    if comptags == REQUIRED {
        return Err(&COMPTAGS);
    }
    *metadata = Some(Metadata { blob, mutable: flags & MUTABLE != 0 });
    args.set(FLAGS, 0);
    Ok(Done::Ok)
}

/// Source: os/linux/ioctl_ctrl.c:nvgpu_gpu_ioctl_get_buffer_info.
pub(super) fn info(device: &Device, args: &mut Args) -> Handled {
    const REGISTERED: u64 = 1 << 0;
    const MUTABLE_METADATA: u64 = 1 << 2;
    use GET_BUFFER_INFO::{
        IN_DMABUF_FD, IN_METADATA_ADDR, IN_METADATA_SIZE, OUT_FLAGS, OUT_METADATA_SIZE,
        OUT_RESERVED, OUT_SIZE,
    };
    let (fd, address) = (args.get(IN_DMABUF_FD), args.get(IN_METADATA_ADDR));
    let room = args.get(IN_METADATA_SIZE) as usize;
    let buffer = device.dma_buf(fd).map_err(|error| error.refused(&CLOSED_FD, &NOT_DMA_BUF))?;
    let (mut flags, mut bytes) = (0, 0);
    if let Some(metadata) = &*buffer.metadata() {
        let blob = &metadata.blob[..metadata.blob.len().min(room)];
        user::write(address, blob).map_err(|_| &BAD_NESTED)?;
        flags = REGISTERED | if metadata.mutable { MUTABLE_METADATA } else { 0 };
        bytes = metadata.blob.len() as u32;
    }
    args.set(OUT_FLAGS, flags);
    args.set(OUT_METADATA_SIZE, bytes);
    args.set(OUT_RESERVED, 0);
    args.set(OUT_SIZE, buffer.bytes());
    Ok(Done::Ok)
}
