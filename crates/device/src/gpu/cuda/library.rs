//! libcuda, loaded at run time through `cudarc`.
//!
//! `cudarc` finds the library and defines the types. Functions are resolved here, all at once,
//! because cudarc's own wrappers panic on a missing symbol and read results as an enum that does
//! not include the codes of newer drivers.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr;

use cudarc::driver::sys::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CUctx_flags_enum, CUdevice_attribute_enum,
    CUevent_flags_enum, CUfunction_attribute_enum, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUlaunchConfig, CUmemAttach_flags_enum, CUstream_flags_enum,
    CUstreamCaptureMode_enum, culib, is_culib_present,
};

use super::driver::{
    Attribute, Call, Context, Driver, Event, Function, Graph, MemoryKind, MemoryPlace, Module,
    Stream,
};
use super::fault::{Code, Fault, Result};

type Pointer = *mut c_void;

macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        #[expect(non_snake_case, reason = "the names of `cuda.h`")]
        pub(super) struct Library { $($name: unsafe extern "C" fn($($argument),*) -> u32,)* }

        impl Library {
            /// Loads libcuda and resolves every used function.
            ///
            /// # Errors
            ///
            /// Why there is no usable driver, on one line.
            #[expect(non_snake_case, reason = "the names of `cuda.h`")]
            pub(super) fn load() -> Result<Self, String> {
                // SAFETY: loading runs the initialisers of the system's libcuda.
                if !unsafe { is_culib_present() } {
                    return Err("no CUDA driver: libcuda.so.1 is not here".into());
                }
                // SAFETY: as above; the library exists, so this does not panic.
                let library = unsafe { culib() };
                $(
                    // SAFETY: the signature is that of `cuda.h`.
                    let $name = *unsafe { library.get(stringify!($name).as_bytes()) }.map_err(
                        |_| format!(
                            "the CUDA driver is too old: it has no {}; 12.0 is the least",
                            stringify!($name)
                        ),
                    )?;
                )*
                Ok(Self { $($name,)* })
            }
        }
    };
}

functions! {
    cuDriverGetVersion(*mut c_int);
    cuInit(c_uint);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGetName(*mut c_char, c_int, c_int);
    cuDeviceGetAttribute(*mut c_int, c_uint, c_int);
    cuCtxCreate_v2(*mut Pointer, c_uint, c_int);
    cuCtxDestroy_v2(Pointer);
    cuCtxSetCurrent(Pointer);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemAllocManaged(*mut u64, usize, c_uint);
    cuMemHostAlloc(*mut Pointer, usize, c_uint);
    cuMemFreeHost(Pointer);
    cuMemHostGetDevicePointer_v2(*mut u64, Pointer, c_uint);
    cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, Pointer);
    cuMemcpyDtoHAsync_v2(Pointer, u64, usize, Pointer);
    cuMemcpyDtoDAsync_v2(u64, u64, usize, Pointer);
    cuMemsetD8Async(u64, u8, usize, Pointer);
    cuModuleLoadData(*mut Pointer, *const c_void);
    cuModuleUnload(Pointer);
    cuModuleGetFunction(*mut Pointer, Pointer, *const c_char);
    cuFuncSetAttribute(Pointer, c_uint, c_int);
    cuStreamCreate(*mut Pointer, c_uint);
    cuStreamDestroy_v2(Pointer);
    cuStreamSynchronize(Pointer);
    cuStreamBeginCapture_v2(Pointer, c_uint);
    cuStreamEndCapture(Pointer, *mut Pointer);
    cuGraphInstantiateWithFlags(*mut Pointer, Pointer, c_ulonglong);
    cuGraphDestroy(Pointer);
    cuGraphExecDestroy(Pointer);
    cuGraphLaunch(Pointer, Pointer);
    cuLaunchKernelEx(*const CUlaunchConfig, Pointer, *mut Pointer, *mut Pointer);
    cuEventCreate(*mut Pointer, c_uint);
    cuEventDestroy_v2(Pointer);
    cuEventRecord(Pointer, Pointer);
    cuEventSynchronize(Pointer);
    cuEventElapsedTime(*mut f32, Pointer, Pointer);
}

/// Calls a function; the error contains its name.
macro_rules! call {
    ($library:expr, $name:ident($($argument:expr),*)) => {{
        // SAFETY: the signature is that of `cuda.h`. Results are written to locals that outlive the
        // call; handles are the driver's own and alive; other requirements on pointers are promised
        // by the caller of the enclosing method.
        let code = unsafe { ($library.$name)($($argument),*) };
        if code == 0 { Ok(()) } else { Err(Fault::new(stringify!($name), Code(code))) }
    }};
}

const fn pointer(handle: u64) -> Pointer {
    ptr::without_provenance_mut(handle as usize)
}

fn handle(pointer: Pointer) -> u64 {
    pointer.addr() as u64
}

impl Driver for Library {
    fn version(&self) -> Result<i32> {
        let mut version = 0;
        call!(self, cuDriverGetVersion(&raw mut version)).map(|()| version)
    }

    fn init(&self) -> Result {
        call!(self, cuInit(0))
    }

    fn devices(&self) -> Result<i32> {
        let mut count = 0;
        call!(self, cuDeviceGetCount(&raw mut count)).map(|()| count)
    }

    fn name(&self, device: i32) -> Result<String> {
        let mut name: [c_char; 256] = [0; 256];
        call!(self, cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device))?;
        let bytes = name.map(|c| c.to_ne_bytes()[0]);
        let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    fn attribute(&self, device: i32, attribute: Attribute) -> Result<i32> {
        use CUdevice_attribute_enum as Number;
        let number = match attribute {
            Attribute::Major => Number::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            Attribute::Minor => Number::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            Attribute::Multiprocessors => Number::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            Attribute::Integrated => Number::CU_DEVICE_ATTRIBUTE_INTEGRATED,
            Attribute::ClockRate => Number::CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
            Attribute::ComputeMode => Number::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE,
        };
        let mut value = 0;
        call!(self, cuDeviceGetAttribute(&raw mut value, number as c_uint, device)).map(|()| value)
    }

    fn create_context(&self, device: i32) -> Result<Context> {
        let mut context = ptr::null_mut();
        let flags = CUctx_flags_enum::CU_CTX_SCHED_AUTO as c_uint;
        call!(self, cuCtxCreate_v2(&raw mut context, flags, device))?;
        Ok(Context(handle(context)))
    }

    fn destroy_context(&self, context: Context) -> Result {
        call!(self, cuCtxDestroy_v2(pointer(context.0)))
    }

    fn enter(&self, context: Context) -> Result {
        call!(self, cuCtxSetCurrent(pointer(context.0)))
    }

    fn memory(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        call!(self, cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok((free as u64, total as u64))
    }

    fn alloc(&self, kind: MemoryKind, bytes: u64) -> Result<MemoryPlace> {
        let Ok(size) = usize::try_from(bytes) else {
            return Err(Fault::new("cuMemAlloc_v2", Code::OUT_OF_MEMORY));
        };
        let mut address = 0;
        match kind {
            MemoryKind::Device => {
                call!(self, cuMemAlloc_v2(&raw mut address, size))?;
                Ok(MemoryPlace { address, host: 0 })
            }
            MemoryKind::Managed => {
                let flags = CUmemAttach_flags_enum::CU_MEM_ATTACH_GLOBAL as c_uint;
                call!(self, cuMemAllocManaged(&raw mut address, size, flags))?;
                Ok(MemoryPlace { address, host: address as usize })
            }
            MemoryKind::Pinned => {
                let mut host = ptr::null_mut();
                let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
                call!(self, cuMemHostAlloc(&raw mut host, size, flags))?;
                match call!(self, cuMemHostGetDevicePointer_v2(&raw mut address, host, 0)) {
                    Ok(()) => Ok(MemoryPlace { address, host: host.expose_provenance() }),
                    Err(fault) => {
                        call!(self, cuMemFreeHost(host))?;
                        Err(fault)
                    }
                }
            }
        }
    }

    fn free(&self, kind: MemoryKind, place: MemoryPlace) -> Result {
        match kind {
            MemoryKind::Device | MemoryKind::Managed => call!(self, cuMemFree_v2(place.address)),
            MemoryKind::Pinned => {
                call!(self, cuMemFreeHost(ptr::with_exposed_provenance_mut(place.host)))
            }
        }
    }

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, stream: Stream) -> Result {
        call!(self, cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, pointer(stream.0)))
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, stream: Stream) -> Result {
        call!(self, cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, pointer(stream.0)))
    }

    fn clear(&self, at: u64, bytes: u64, stream: Stream) -> Result {
        call!(self, cuMemsetD8Async(at, 0, bytes as usize, pointer(stream.0)))
    }

    fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result {
        call!(self, cuMemcpyDtoDAsync_v2(to, from, bytes as usize, pointer(stream.0)))
    }

    fn load(&self, image: &[u8]) -> Result<Module> {
        let mut module = ptr::null_mut();
        call!(self, cuModuleLoadData(&raw mut module, image.as_ptr().cast()))?;
        Ok(Module(handle(module)))
    }

    fn unload(&self, module: Module) -> Result {
        call!(self, cuModuleUnload(pointer(module.0)))
    }

    fn function(&self, module: Module, name: &str) -> Result<Function> {
        let Ok(name) = CString::new(name) else {
            return Err(Fault::new("cuModuleGetFunction", Code::INVALID_VALUE));
        };
        let mut function = ptr::null_mut();
        call!(self, cuModuleGetFunction(&raw mut function, pointer(module.0), name.as_ptr()))?;
        Ok(Function(handle(function)))
    }

    fn allow_shared(&self, function: Function, bytes: u32) -> Result {
        let which = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        call!(self, cuFuncSetAttribute(pointer(function.0), which as c_uint, bytes as c_int))
    }

    fn create_stream(&self) -> Result<Stream> {
        let mut stream = ptr::null_mut();
        let flags = CUstream_flags_enum::CU_STREAM_NON_BLOCKING as c_uint;
        call!(self, cuStreamCreate(&raw mut stream, flags))?;
        Ok(Stream(handle(stream)))
    }

    fn destroy_stream(&self, stream: Stream) -> Result {
        call!(self, cuStreamDestroy_v2(pointer(stream.0)))
    }

    fn synchronize(&self, stream: Stream) -> Result {
        call!(self, cuStreamSynchronize(pointer(stream.0)))
    }

    unsafe fn launch(&self, call: &Call<'_>, stream: Stream) -> Result {
        let [x, y, z] = call.grid;
        let [threads_x, threads_y, threads_z] = call.block;
        // The driver copies the parameter before it returns.
        let mut params = [call.params.as_ptr().cast_mut().cast::<c_void>()];
        let mut early = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: threads_x,
            blockDimY: threads_y,
            blockDimZ: threads_z,
            sharedMemBytes: call.shared_bytes,
            hStream: pointer(stream.0).cast(),
            attrs: &raw mut early,
            numAttrs: c_uint::from(call.programmatic),
        };
        call!(
            self,
            cuLaunchKernelEx(
                &raw const config,
                pointer(call.function.0),
                params.as_mut_ptr(),
                ptr::null_mut()
            )
        )
    }

    fn begin_capture(&self, stream: Stream) -> Result {
        let mode = CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as c_uint;
        call!(self, cuStreamBeginCapture_v2(pointer(stream.0), mode))
    }

    fn end_capture(&self, stream: Stream) -> Result<Graph> {
        let (mut graph, mut ready) = (ptr::null_mut(), ptr::null_mut());
        call!(self, cuStreamEndCapture(pointer(stream.0), &raw mut graph))?;
        let made = call!(self, cuGraphInstantiateWithFlags(&raw mut ready, graph, 0));
        // The instantiated graph does not need its source.
        call!(self, cuGraphDestroy(graph))?;
        made.map(|()| Graph(handle(ready)))
    }

    fn launch_graph(&self, graph: Graph, stream: Stream) -> Result {
        call!(self, cuGraphLaunch(pointer(graph.0), pointer(stream.0)))
    }

    fn destroy_graph(&self, graph: Graph) -> Result {
        call!(self, cuGraphExecDestroy(pointer(graph.0)))
    }

    fn create_event(&self, timing: bool) -> Result<Event> {
        let flags = if timing {
            CUevent_flags_enum::CU_EVENT_DEFAULT
        } else {
            CUevent_flags_enum::CU_EVENT_DISABLE_TIMING
        };
        let mut event = ptr::null_mut();
        call!(self, cuEventCreate(&raw mut event, flags as c_uint))?;
        Ok(Event(handle(event)))
    }

    fn destroy_event(&self, event: Event) -> Result {
        call!(self, cuEventDestroy_v2(pointer(event.0)))
    }

    fn record(&self, event: Event, stream: Stream) -> Result {
        call!(self, cuEventRecord(pointer(event.0), pointer(stream.0)))
    }

    fn wait(&self, event: Event) -> Result {
        call!(self, cuEventSynchronize(pointer(event.0)))
    }

    fn elapsed(&self, from: Event, to: Event) -> Result<f32> {
        let mut milliseconds = 0.0;
        call!(self, cuEventElapsedTime(&raw mut milliseconds, pointer(from.0), pointer(to.0)))
            .map(|()| milliseconds)
    }
}
