//! The waiting calls with a zero timeout: each way to wait in a set, `ctl_batch`, `poll` and
//! `select`.

use std::time::Duration;

use upoll::{Clock, CtlCommand, Epoll, Errno, Event, Events, FdSet, Op, PollFd, SigSet, Timeout};

use super::twin::poll::{kernel_poll, kernel_select, masks};
use super::twin::result;
use super::{Twin, same};

/// A call that returns the ready events of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Harvest,
    Wait,
    Pwait,
    /// With a clock, and with or without a signal mask.
    Pwait1(Clock, bool),
}

impl Form {
    fn upoll(self, set: &Epoll, events: &mut [Event]) -> Result<usize, Errno> {
        let mask = SigSet::full();
        match self {
            Form::Harvest => set.try_wait(events),
            Form::Wait => set.wait(events, Timeout::NOW),
            Form::Pwait => set.pwait(events, Timeout::NOW, &mask),
            Form::Pwait1(clock, masked) => {
                let timeout = Timeout::after(clock, Duration::ZERO);
                set.pwait1(events, timeout, masked.then_some(&mask))
            }
        }
    }

    fn kernel(self, set: i32, events: &mut [libc::epoll_event]) -> Result<usize, Errno> {
        let list = events.as_mut_ptr();
        let room = i32::try_from(events.len()).unwrap();
        // SAFETY: all zeros is an empty signal set, and a time of zero.
        let (mask, limit): (libc::sigset_t, libc::timespec) = unsafe { std::mem::zeroed() };
        let ready = match self {
            // SAFETY: the buffer has the room that is claimed.
            Form::Harvest | Form::Wait => unsafe { libc::epoll_wait(set, list, room, 0) },
            // SAFETY: as above; the mask outlives the call.
            Form::Pwait => unsafe { libc::epoll_pwait(set, list, room, 0, &raw const mask) },
            Form::Pwait1(_, masked) => {
                let mask = if masked {
                    &raw const mask
                } else {
                    std::ptr::null()
                };
                // SAFETY: as above; the limit is live, and the kernel's signal sets have eight
                // bytes.
                let ready = unsafe {
                    libc::syscall(
                        libc::SYS_epoll_pwait2,
                        set,
                        list,
                        room,
                        &raw const limit,
                        mask,
                        8_usize,
                    )
                };
                i32::try_from(ready).unwrap()
            }
        };
        result(ready as isize)
    }
}

fn pair(event: &Event) -> (u32, u64) {
    (event.events().bits(), event.data())
}

/// A command of a batch: operation, target number, and the interest.
pub type Change = (Op, usize, Events, u64);

impl Twin {
    /// Compares the ready events of a set.
    pub fn wait_by(&self, form: Form, number: usize, room: usize) {
        let Some(set) = self.set(number) else { return };
        let mut ours = vec![Event::default(); room];
        let upoll = form
            .upoll(set, &mut ours)
            .map(|ready| ours[..ready].iter().map(pair).collect::<Vec<_>>());
        let mut theirs = vec![libc::epoll_event { events: 0, u64: 0 }; room];
        let kernel = form
            .kernel(self.kernel.fd(number), &mut theirs)
            .map(|ready| theirs[..ready].iter().map(|e| (e.events, e.u64)).collect());
        let _ = self.same_events((form, number, room), upoll, kernel);
    }

    /// Applies the changes one by one until one fails, and then waits if `room` is given. Changes
    /// of targets that are not open are left out.
    pub fn batch(&self, number: usize, changes: &[Change], room: Option<usize>) {
        let Some(set) = self.set(number) else { return };
        let (changes, mut commands): (Vec<_>, Vec<_>) = changes
            .iter()
            .filter_map(|&(op, target, events, data)| {
                let command = CtlCommand::new(op, self.target(target)?, Event::new(events, data));
                Some(((op, target, events, data), command))
            })
            .unzip();
        let mut events = vec![Event::default(); room.unwrap_or(0)];
        let upoll = match room {
            None => set.ctl_batch(&mut commands).map(|done| (done, None)),
            Some(_) => set
                .ctl_batch_wait(&mut commands, &mut events, Timeout::NOW, None)
                .map(|outcome| (outcome.done, outcome.ready)),
        };
        let what = ("batch", number, &changes, room);
        if room.map_or(changes.is_empty(), |room| room == 0) {
            let _ = same(what, upoll, Err(Errno::INVAL));
            return;
        }
        let mut done = 0;
        for (&(op, target, events, data), command) in changes.iter().zip(&commands) {
            let kernel = self.kernel.ctl(number, op as i32, target, events, data);
            if same(what, command.result, kernel).is_err() {
                break;
            }
            done += 1;
        }
        let room = room.filter(|_| done == changes.len());
        let (upoll_done, ready) = upoll.unwrap();
        same(what, (upoll_done, ready.is_some()), (done, room.is_some()));
        if let (Some(ready), Some(room)) = (ready, room) {
            let upoll = ready.map(|ready| events[..ready].iter().map(pair).collect());
            let _ = self.same_events(what, upoll, self.kernel.wait(number, room));
        }
    }

    /// Compares `poll` or, with a signal mask, `ppoll`. Each entry is a number, which need not be
    /// open, or ignored.
    pub fn poll(&self, list: &[(Option<usize>, Events)], masked: bool) {
        let files: Vec<_> = list
            .iter()
            .map(|&(number, _)| self.target(number?))
            .collect();
        let mut ours: Vec<_> = list
            .iter()
            .zip(&files)
            .map(|(&(number, events), file)| match (number, file) {
                (None, _) => PollFd::ignored(),
                (_, None) => PollFd::not_open(),
                (_, Some(file)) => PollFd::from_target(*file, events),
            })
            .collect();
        let ready = if masked {
            upoll::ppoll(&mut ours, Timeout::NOW, &SigSet::full())
        } else {
            upoll::poll(&mut ours, Timeout::NOW)
        };
        let theirs: Vec<_> = list
            .iter()
            .map(|&(number, events)| (number.map_or(-1, |n| self.kernel.fd(n)), events))
            .collect();
        let kernel = kernel_poll(&theirs, 0);
        let _ = same(("poll", list), (ready, masks(&ours)), kernel);
    }

    /// Compares `select` or, with a signal mask, `pselect`, of the numbers below `n`.
    pub fn select(
        &self,
        n: i32,
        sets: &[Option<Vec<usize>>; 3],
        masked: bool,
    ) -> Result<usize, Errno> {
        let first = self.kernel.fd(0);
        let n = if n < 0 { n } else { first + n };
        let sets = sets.each_ref().map(|set| {
            let numbers = set.as_ref()?.iter();
            Some(numbers.map(|&number| self.kernel.fd(number)).collect())
        });
        let resolve = |fd: i32| {
            let number = usize::try_from(fd - first).ok()?;
            self.objects.get(number)?;
            self.target(number)
        };
        let mut ours: [Option<FdSet>; 3] = sets.clone();
        let [read, write, except] = ours.each_mut().map(Option::as_mut);
        let ready = if masked {
            let mask = SigSet::full();
            upoll::pselect(n, read, write, except, Timeout::NOW, &mask, resolve)
        } else {
            upoll::select(n, read, write, except, &mut { Timeout::NOW }, resolve)
        };
        let kernel = kernel_select(n, &sets, Duration::ZERO);
        same(("select", n, &sets), (ready, ours), kernel).0
    }
}
