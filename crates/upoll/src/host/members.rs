//! The members of a kernel set: those that the library knows of, and those that `/proc` shows.

use std::ffi::CStr;
use std::fmt;
use std::os::fd::{AsRawFd, RawFd};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::interest_list::Listed;
use super::rotation::Rotation;
use super::{EpollBackend, kernel};
use crate::Epoll;
use crate::errno::Errno;
use crate::events::{Event, Events};
use crate::memory::text_of;
use crate::sync::Ordering;

/// A line of fdinfo.
struct Line<'a> {
    text: &'a str,
    fd: RawFd,
    interest: Event,
    inode: Option<u64>,
}

impl<'a> Line<'a> {
    /// None if it is not about a member.
    fn parse(text: &'a str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let mut after = |name| (words.next() == Some(name)).then(|| words.next()).flatten();
        let fd = after("tfd:")?.parse().ok()?;
        let events = u32::from_str_radix(after("events:")?, 16).ok()?;
        let data = u64::from_str_radix(after("data:")?, 16).ok()?;
        let interest = Event::new(Events::from_bits_retain(events), data);
        let inode = words.find_map(|word| word.strip_prefix("ino:"));
        Some(Line {
            text,
            fd,
            interest,
            inode: inode.and_then(|inode| u64::from_str_radix(inode, 16).ok()),
        })
    }
}

impl EpollBackend {
    /// Returns the text in `/proc` about the kernel set that has the members. Without it, returns
    /// the list that the library keeps.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    fn read_members(&self) -> Result<String, Errno> {
        let members = self.members();
        let path = text_of(|path| write!(path, "/proc/self/fdinfo/{}\0", members.as_raw_fd()))?;
        let path = CStr::from_bytes_with_nul(path.as_bytes()).unwrap_or_default();
        let text = match members.is_intact() {
            true => kernel::read_proc(path)?,
            false => String::new(),
        };
        match text.is_empty() {
            true => text_of(|out| self.show_listed(out)),
            false => Ok(text),
        }
    }

    /// The members in such a text, less the specials.
    fn members_in<'a>(&self, text: &'a str) -> impl Iterator<Item = Line<'a>> {
        let seal = self.members().fd_of_seal();
        let is_special = move |line: &Line| {
            let is_told_by_data = self.rotation.is_none();
            Some(line.fd) == seal
                || (is_told_by_data && self.specials.decode(line.interest.data()).is_some())
        };
        let lines = text.lines().filter_map(Line::parse);
        lines.filter(move |line| !is_special(line))
    }

    /// Returns the number of members. Reads nothing in `/proc` if the library knows it by itself.
    pub(super) fn count_members(&self) -> usize {
        if self.adopted.load(Ordering::Relaxed) == 0 {
            return self.listed.iter().map(|listed| self.count(listed)).sum();
        }
        match self.read_members() {
            Ok(text) if !text.is_empty() => self.members_in(&text).count(),
            // An adopted set had members that only the kernel knows.
            _ => self.members.load(Ordering::Relaxed),
        }
    }

    /// Returns the number of members by the fd of `listed`. There is none if the file was closed, and there may be
    /// more than one if files live on under other fds.
    fn count(&self, listed: Listed) -> usize {
        // The kernel looks members up one after the other, which would take long for each of many
        // connections. A socket is opened once.
        if !listed.is_again && listed.inode != 0 {
            let inode = kernel::socket_inode(listed.fd);
            if inode == Some(listed.inode) {
                return 1;
            }
        }
        if !self.members().is_intact() {
            return usize::from(kernel::inode(listed.fd).is_some());
        }
        let mut count = 0;
        while let Ok(which) = u32::try_from(count) {
            match kernel::has_member(self.members(), listed.fd, which) {
                Some(true) => count += 1,
                Some(false) => break,
                None => return usize::from(kernel::inode(listed.fd).is_some()),
            }
        }
        count
    }

    /// Writes the lines of the members, by what the library knows: for where there is no `/proc`, or no fd to
    /// read it.
    fn show_listed(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        for listed in self.listed.iter() {
            if self.count(listed) == 0 {
                continue;
            }
            let inode = kernel::inode(listed.fd).unwrap_or(0);
            let (events, data) = (listed.interest.events().bits(), listed.interest.data());
            let fd = listed.fd;
            // Linux asks for errors and hang-ups of every member.
            let events = events | (Events::ERR | Events::HUP).bits();
            writeln!(
                out,
                "tfd: {fd:8} events: {events:8x} data: {data:16x}  pos:0 ino:{inode:x} sdev:0"
            )?;
        }
        Ok(())
    }

    /// A line for each member.
    pub(super) fn show_members(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.members_in(&self.read_members().map_err(|_| fmt::Error)?)
            .try_for_each(|line| writeln!(out, "{}", line.text))
    }

    /// Returns the fds and interests of members whose fds stand for them still.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for the list.
    fn current_members(&self) -> Result<Vec<(RawFd, Event)>, Errno> {
        /// Other threads that change the set without end get what there was at some moment.
        const LOOKS: u32 = 8;
        let mut text = self.read_members()?;
        let mut looks = 1;
        loop {
            let (members, is_by_place) = self.current_members_in(&text)?;
            if !is_by_place || looks == LOOKS {
                return Ok(members);
            }
            // A member that comes or goes shifts the places of others with its fd.
            let again = self.read_members()?;
            if again == text {
                return Ok(members);
            }
            text = again;
            looks += 1;
        }
    }

    /// Returns those of the members in `text`, and whether the kernel was asked for one by its place among those of its fd.
    fn current_members_in(&self, text: &str) -> Result<(Vec<(RawFd, Event)>, bool), Errno> {
        let mut members: Vec<(RawFd, Event)> = Vec::new();
        let mut is_by_place = false;
        match &self.rotation {
            Some(rotation) => {
                let fd = rotation.fd().filter(|_| rotation.has_source());
                let interest = self.members_in(text).last().map(|line| line.interest);
                members.try_reserve(1).map_err(|_| Errno::NOMEM)?;
                members.extend(fd.zip(interest));
            }
            None => {
                // Several may go by one fd, if it was closed and its file lives on under another.
                let mut known: HashMap<RawFd, u32, FxBuildHasher> = HashMap::default();
                for line in self.members_in(text) {
                    known.try_reserve(1).map_err(|_| Errno::NOMEM)?;
                    let known = known.entry(line.fd).or_insert(0);
                    let which = std::mem::replace(known, *known + 1);
                    let is_current = match kernel::socket_inode(line.fd) {
                        // A socket is opened once. The kernel looks members up one after the other,
                        // which would take long for each of many connections.
                        Some(inode) => line.inode.is_none_or(|known| known == inode),
                        None => {
                            is_by_place = true;
                            kernel::is_member(self.members(), line.fd, which)
                        }
                    };
                    if is_current {
                        members.try_reserve(1).map_err(|_| Errno::NOMEM)?;
                        members.push((line.fd, line.interest));
                    }
                }
            }
        }
        Ok((members, is_by_place))
    }
}

impl Epoll {
    /// Returns whether a call that this one interrupts, in a signal handler, has locked the set: what looks
    /// through its interests would wait for that for ever.
    #[doc(hidden)]
    #[must_use]
    pub fn is_locked_here(&self) -> bool {
        let source = EpollBackend::of(self.set()).and_then(|backend| backend.rotation.as_ref());
        self.set().is_locked_by_this_thread() || source.is_some_and(Rotation::is_locked_here)
    }

    /// Returns the interests in kernel fds, each with its fd.
    ///
    /// A oneshot interest that has fired asks for no events any more. Left out are those whose fd
    /// was closed, and stands for another file by now; and all of them where there is no `/proc`.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for the list.
    pub fn kernel_interests(&self) -> Result<Vec<(RawFd, Event)>, Errno> {
        EpollBackend::of(self.set()).map_or_else(|| Ok(Vec::new()), EpollBackend::current_members)
    }
}
