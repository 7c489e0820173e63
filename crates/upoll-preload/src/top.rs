//! Figures of sets for `upoll top`, if `UPOLL_TOP` is in the environment: the file that the processes of a run
//! share.

use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use upoll::Errno;
use upoll_fds::internal;
use upoll_fds::internal::figures::{self, Page};
use upoll_sys::shared_file::{self, Identity};

use crate::kernel;
use crate::settings::variable;

/// The shared file, in the process that may come to remove it.
struct File {
    /// The program may overwrite its environment, so this is a copy.
    path: Vec<u8>,
    identity: Identity,
    page: &'static Page,
}

static FILE: OnceLock<File> = OnceLock::new();

/// Begins to show figures if `UPOLL_TOP` is in the environment.
pub(crate) fn prepare() {
    let Some(path) = variable(c"UPOLL_TOP").filter(|path| !path.is_empty()) else {
        return;
    };
    let Some((page, identity)) = map(path) else {
        return;
    };
    figures::show(page);
    let mut copy = Vec::new();
    // Without memory the next run removes the file.
    if copy.try_reserve_exact(path.count_bytes() + 1).is_ok() {
        copy.extend_from_slice(path.to_bytes_with_nul());
        let _ = FILE.set(File {
            path: copy,
            identity,
            page,
        });
    }
    let (own, relaxed) = (process(), Ordering::Relaxed);
    let _ = page.root.compare_exchange(0, own, relaxed, relaxed);
}

/// Maps the shared file.
fn map(path: &CStr) -> Option<(&'static Page, Identity)> {
    let mapped = shared_file::map(path, size_of::<Page>()).ok()?;
    // SAFETY: new memory of this size, which stays mapped. A page consists of atomics, which may have any value.
    let page = unsafe { mapped.memory.cast().as_ref() };
    Some((page, mapped.identity))
}

fn process() -> u64 {
    kernel::call!(SYS_getpid).map_or(0, |id| id as u64)
}

/// Shows the figures of a set that the calling thread has changed.
#[inline]
pub(crate) fn note_change(epfd: i32) {
    if figures::are_shown() {
        internal::note_figures(epfd, 0);
    }
}

/// Shows the figures of a set that the calling thread has waited in.
#[inline]
pub(crate) fn noted(epfd: i32, found: Result<usize, Errno>) -> Result<usize, Errno> {
    if figures::are_shown() {
        internal::note_figures(epfd, found.unwrap_or(0));
    }
    found
}

/// Removes the file if this is the first process of the run. The process may go on to use the page.
pub(crate) fn end() {
    if let Some(file) = FILE.get()
        && file.page.root.load(Ordering::Relaxed) == process()
        && let Ok(path) = CStr::from_bytes_with_nul(&file.path)
    {
        file.identity.unlink(path);
    }
}

extern "C" fn at_exit() {
    end();
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
