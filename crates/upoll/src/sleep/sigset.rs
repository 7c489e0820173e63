//! `sigset_t`: which signals a thread holds back.

use core::fmt;
use core::mem::MaybeUninit;
use core::ptr;

use crate::errno::Errno;

/// A set of signals, to be held back while a call waits.
///
/// # Example
/// ```
/// use upoll::SigSet;
/// let mut held = SigSet::empty();
/// held.add(15)?;
/// assert!(held.contains(15));
/// # Ok::<(), upoll::Errno>(())
/// ```
#[derive(Clone, Copy)]
#[doc(alias = "sigset_t")]
#[repr(transparent)]
pub struct SigSet(libc::sigset_t);

impl SigSet {
    /// No signal (`sigemptyset`).
    #[must_use]
    pub fn empty() -> Self {
        let mut set = MaybeUninit::uninit();
        // SAFETY: the call fills the set.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            SigSet(set.assume_init())
        }
    }

    /// Every signal (`sigfillset`).
    #[must_use]
    pub fn full() -> Self {
        let mut set = MaybeUninit::uninit();
        // SAFETY: the call fills the set.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
            SigSet(set.assume_init())
        }
    }

    /// Returns the signals that the calling thread blocks now.
    #[must_use]
    pub fn of_this_thread() -> Self {
        let mut set = Self::empty();
        // SAFETY: without a new mask the call only writes the old one, to a set.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut set.0);
        }
        set
    }

    /// Adds a signal.
    ///
    /// # Errors
    /// `EINVAL`: there is no such signal.
    pub fn add(&mut self, signal: i32) -> Result<(), Errno> {
        // SAFETY: the set is initialised.
        match unsafe { libc::sigaddset(&raw mut self.0, signal) } {
            0 => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }

    /// Takes a signal out.
    ///
    /// # Errors
    /// `EINVAL`: there is no such signal.
    pub fn remove(&mut self, signal: i32) -> Result<(), Errno> {
        // SAFETY: the set is initialised.
        match unsafe { libc::sigdelset(&raw mut self.0, signal) } {
            0 => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }

    /// Returns whether a signal is in the set.
    #[must_use]
    pub fn contains(&self, signal: i32) -> bool {
        // SAFETY: the set is initialised.
        unsafe { libc::sigismember(&raw const self.0, signal) == 1 }
    }

    pub(super) fn as_libc(&self) -> &libc::sigset_t {
        &self.0
    }
}

impl From<libc::sigset_t> for SigSet {
    fn from(set: libc::sigset_t) -> Self {
        SigSet(set)
    }
}

impl From<SigSet> for libc::sigset_t {
    fn from(set: SigSet) -> Self {
        set.0
    }
}

impl fmt::Debug for SigSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signals = 1..=libc::SIGRTMAX();
        f.debug_set()
            .entries(signals.filter(|&signal| self.contains(signal)))
            .finish()
    }
}
