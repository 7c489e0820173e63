//! A kernel set of the library's own, for models of what its fds go through.

use std::os::fd::{AsRawFd, RawFd};

use super::kernel;
use super::own_fds::OwnFd;
use crate::events::{Event, Events};

/// A kernel set that threads are woken in.
#[derive(Debug)]
pub struct OwnSet(OwnFd);

impl OwnSet {
    const DATA: u64 = 1;

    /// Makes one, with the seal in it.
    #[expect(clippy::new_without_default, reason = "for models only")]
    pub fn new() -> Self {
        OwnSet(kernel::epoll_create().expect("fds are free"))
    }

    /// Returns its fd.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Sends a wake, and returns whether the set was there.
    pub fn ring(&self) -> bool {
        self.0.ring(Self::DATA)
    }

    /// Takes back a wakeup that no thread has taken.
    pub fn quiet(&self) -> bool {
        self.0.quiet(Self::DATA)
    }

    /// Returns whether its fds still stand for its files.
    pub fn is_intact(&self) -> bool {
        self.0.is_intact()
    }

    /// Takes a wakeup, and returns whether there was one.
    pub fn hear(&self) -> bool {
        let mut events = [Event::default(); 2];
        match kernel::epoll_harvest(&self.0, &mut events) {
            Ok(0) | Err(_) => false,
            Ok(1) => {
                assert_eq!(events[0].data(), Self::DATA);
                assert_eq!(events[0].events(), Events::OUT);
                true
            }
            Ok(_) => panic!("two wakes"),
        }
    }

    /// Makes it anew if it was lost.
    pub fn restore(&self) {
        if !self.0.is_intact() {
            let anew = kernel::epoll_create_elsewhere(&self.0).expect("fds are free");
            self.0.replace_lost(anew);
        }
    }
}
