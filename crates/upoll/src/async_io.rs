//! Calls that wait as a future in place of a blocked thread.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::Epoll;
use crate::channel::{Receiver, RecvError, SendError, Sender, TryRecvError, TrySendError};
use crate::epoll::any_hangs_up;
use crate::epoll::backend::KernelBackend;
use crate::errno::Errno;
use crate::eventfd::EventFd;
use crate::events::{Event, Events};
use crate::file::Description;
use crate::open_file::FileRef;
use crate::pipe::{PipeReader, PipeWriter};
use crate::readiness::TaskWait;
use crate::socketpair::StreamSocket;
use crate::target::Target;
use crate::wait::Place;

/// Makes a call that does not wait, once and after each change of an object, until it does not fail with `EAGAIN`.
///
/// An attempt returns its result, with whether that is a hang-up, which other tasks have to learn of, too. It
/// either is the whole call or changes nothing. So dropping this between two attempts loses nothing.
struct Attempt<'a, F> {
    attempt: F,
    wait: Result<TaskWait<&'a Description>, Errno>,
}

impl<'a, F> Attempt<'a, F> {
    #[inline]
    fn new(file: FileRef<'a>, events: Events, place: Place, attempt: F) -> Self {
        Attempt {
            attempt,
            wait: TaskWait::borrow(file, events, place),
        }
    }
}

impl<T, F: FnMut() -> Result<(T, bool), Errno>> Future for Attempt<'_, F> {
    type Output = Result<T, Errno>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: `wait` is pinned as the whole is, and `attempt` is never pinned.
        let Attempt { attempt, wait } = unsafe { self.get_unchecked_mut() };
        let wait = match wait {
            // SAFETY: as above.
            Ok(wait) => unsafe { Pin::new_unchecked(wait) },
            Err(errno) => return Poll::Ready(Err(*errno)),
        };
        wait.poll_until(context.waker(), |_| match attempt() {
            Err(Errno::AGAIN) => None,
            // The event stays for the next task.
            Err(errno) => Some((Err(errno), true)),
            Ok((done, hangs_up)) => Some((Ok(done), hangs_up)),
        })
    }
}

/// The number of scans of other threads, one after the other, that a task may meet which looks for events.
const MOST_SCANS: u32 = 64;

/// A call on an object that is stale does not wait.
fn or_stale<T>(
    done: Result<T, Errno>,
    is_stale: impl FnOnce() -> bool,
) -> Result<(T, bool), Errno> {
    match done {
        Err(Errno::AGAIN) if is_stale() => Err(Errno::STALE),
        done => done.map(|done| (done, false)),
    }
}

impl EventFd {
    /// Takes the count, or one of it from a semaphore. The future waits while the count is 0, also if the object is
    /// `NONBLOCK`.
    ///
    /// All tasks and threads that wait are woken by each change and try again, as with [`try_read`](Self::try_read).
    /// Waiting allocates nothing. A [shared](Self::shared) eventfd wakes only tasks of the process that changes it.
    ///
    /// # Cancel safety
    /// A future that is dropped before it is ready has taken nothing.
    ///
    /// # Errors
    /// `ESTALE`: it was [demoted](Self::demote).
    ///
    /// # Example
    /// ```
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     match future.as_mut().poll(&mut context) {
    /// #         std::task::Poll::Ready(done) => done,
    /// #         std::task::Poll::Pending => panic!("it waits"),
    /// #     }
    /// # }
    /// use upoll::EventFd;
    ///
    /// let counter = EventFd::new(0)?;
    /// let work = async {
    ///     counter.write_async(3).await?;
    ///     counter.read_async().await
    /// };
    /// assert_eq!(block_on(work), Ok(3));
    /// # Ok::<(), upoll::Errno>(())
    /// ```
    pub fn read_async(&self) -> impl Future<Output = Result<u64, Errno>> + Send + use<'_> {
        let attempt = move || or_stale(self.try_read(), || self.is_stale());
        Attempt::new(self.as_file_ref(), Events::IN, Place::Shared, attempt)
    }

    /// Adds `value`. The future waits while the sum would reach the maximum, also if the object is `NONBLOCK`.
    ///
    /// # Cancel safety
    /// A future that is dropped before it is ready has added nothing.
    ///
    /// # Errors
    /// `EINVAL`: `value` is `u64::MAX`. `ESTALE`: it was [demoted](Self::demote).
    pub fn write_async(
        &self,
        value: u64,
    ) -> impl Future<Output = Result<(), Errno>> + Send + use<'_> {
        let attempt = move || or_stale(self.try_write(value), || self.is_stale());
        Attempt::new(self.as_file_ref(), Events::OUT, Place::Shared, attempt)
    }
}

impl PipeReader {
    /// Reads up to `buffer.len()` bytes, and returns how many. The future waits while the pipe is empty and has
    /// writers, also if the object is `NONBLOCK`. It returns 0 at the end of the stream.
    ///
    /// # Cancel safety
    /// A future that is dropped before it is ready has read nothing.
    ///
    /// # Errors
    /// As [`try_read`](Self::try_read), without `EAGAIN`. `ESTALE`: it was [demoted](Self::demote).
    pub fn read_async<'a>(
        &'a self,
        buffer: &'a mut [u8],
    ) -> impl Future<Output = Result<usize, Errno>> + Send + use<'a> {
        let attempt = move || or_stale(self.try_read(buffer), || self.is_stale());
        Attempt::new(self.as_file_ref(), Events::IN, Place::Shared, attempt)
    }
}

impl PipeWriter {
    /// Writes bytes of `bytes`, and returns how many: at least one, or all if there are not more than
    /// [`PIPE_BUF`](crate::PIPE_BUF). The future waits while there is no room, also if the object is `NONBLOCK`.
    ///
    /// # Cancel safety
    /// A future that is dropped before it is ready has written nothing.
    ///
    /// # Errors
    /// As [`try_write`](Self::try_write), without `EAGAIN`. `ESTALE`: it was [demoted](Self::demote).
    pub fn write_async<'a>(
        &'a self,
        bytes: &'a [u8],
    ) -> impl Future<Output = Result<usize, Errno>> + Send + use<'a> {
        let attempt = move || or_stale(self.try_write(bytes), || self.is_stale());
        Attempt::new(self.as_file_ref(), Events::OUT, Place::Shared, attempt)
    }
}

impl StreamSocket {
    /// Reads up to `buffer.len()` bytes, and returns how many. The future waits while there are none and the peer can
    /// send, also if the object is `NONBLOCK`. It returns 0 at the end of the stream.
    ///
    /// # Cancel safety
    /// A future that is dropped before it is ready has read nothing.
    ///
    /// # Errors
    /// As [`try_read`](Self::try_read), without `EAGAIN`. `ESTALE`: it was [demoted](Self::demote).
    pub fn read_async<'a>(
        &'a self,
        buffer: &'a mut [u8],
    ) -> impl Future<Output = Result<usize, Errno>> + Send + use<'a> {
        let attempt = move || or_stale(self.try_read(buffer), || self.is_stale());
        Attempt::new(self.as_file_ref(), Events::IN, Place::Shared, attempt)
    }

    /// Writes bytes of `bytes`, and returns how many: at least one. The future waits while there is no room, also if
    /// the object is `NONBLOCK`.
    ///
    /// # Cancel safety
    /// A future that is dropped before it is ready has written nothing.
    ///
    /// # Errors
    /// As [`try_write`](Self::try_write), without `EAGAIN`. `ESTALE`: it was [demoted](Self::demote).
    pub fn write_async<'a>(
        &'a self,
        bytes: &'a [u8],
    ) -> impl Future<Output = Result<usize, Errno>> + Send + use<'a> {
        let attempt = move || or_stale(self.try_write(bytes), || self.is_stale());
        Attempt::new(self.as_file_ref(), Events::OUT, Place::Shared, attempt)
    }
}

/// The reason why an attempt of a channel never fails with an errno but `EAGAIN`.
const WAKES_TASKS: &str = "an end of a channel is no set and has no part in the kernel";

impl<T: Send> Sender<T> {
    /// Sends `message`. The future waits while there is no room.
    ///
    /// All tasks that wait are woken when there is room again, and try again, as with
    /// [`try_send`](Self::try_send). Waiting allocates nothing.
    ///
    /// # Cancel safety
    /// A future that is dropped before it is ready has sent nothing. The message is dropped with it: a task that has to
    /// keep the message waits for `OUT` by [`Readiness`](crate::Readiness), and calls [`try_send`](Self::try_send).
    ///
    /// # Errors
    /// [`SendError`] returns the message: all receivers are gone.
    pub fn send_async(
        &self,
        message: T,
    ) -> impl Future<Output = Result<(), SendError<T>>> + Send + use<'_, T> {
        let mut unsent = Some(message);
        async move {
            let attempt = || {
                let Some(message) = unsent.take() else {
                    return Ok((Ok(()), false));
                };
                match self.try_send(message) {
                    Ok(()) => Ok((Ok(()), false)),
                    Err(TrySendError::Full(message)) => {
                        unsent = Some(message);
                        Err(Errno::AGAIN)
                    }
                    Err(TrySendError::Disconnected(message)) => Ok((Err(SendError(message)), true)),
                }
            };
            let sent = Attempt::new(self.as_file_ref(), Events::OUT, Place::Shared, attempt);
            sent.await.expect(WAKES_TASKS)
        }
    }
}

impl<T: Send> Receiver<T> {
    /// Takes the oldest message. The future waits while there is none.
    ///
    /// All tasks that wait are woken by each message, and one of them gets it. Waiting allocates nothing.
    ///
    /// # Cancel safety
    /// A future that is dropped before it is ready has taken nothing.
    ///
    /// # Errors
    /// [`RecvError`]: there is no message, and all senders are gone.
    ///
    /// # Example
    /// ```
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     match future.as_mut().poll(&mut context) {
    /// #         std::task::Poll::Ready(done) => done,
    /// #         std::task::Poll::Pending => panic!("it waits"),
    /// #     }
    /// # }
    /// use upoll::channel::{RecvError, bounded};
    ///
    /// let (sender, receiver) = bounded(1)?;
    /// let work = async {
    ///     sender.send_async("a job").await.expect("there is a receiver");
    ///     drop(sender);
    ///     (receiver.recv_async().await, receiver.recv_async().await)
    /// };
    /// assert_eq!(block_on(work), (Ok("a job"), Err(RecvError)));
    /// # Ok::<(), upoll::Errno>(())
    /// ```
    pub async fn recv_async(&self) -> Result<T, RecvError> {
        let attempt = || match self.try_recv() {
            Ok(message) => Ok((Ok(message), false)),
            Err(TryRecvError::Empty) => Err(Errno::AGAIN),
            Err(TryRecvError::Disconnected) => Ok((Err(RecvError), true)),
        };
        let received = Attempt::new(self.as_file_ref(), Events::IN, Place::Shared, attempt);
        received.await.expect(WAKES_TASKS)
    }
}

impl Epoll {
    /// Reports ready members as [`try_wait`](Self::try_wait) does. The future waits while there are none.
    ///
    /// Fills `events` from the front and returns their number, at least one. All tasks that wait in a set are woken by
    /// each event, and one of them gets it. Tasks that wait in a set with [`ROTATE`](crate::CreateFlags::ROTATE) take
    /// turns instead.
    ///
    /// A set with kernel fds is registered in the kernel for each call. A task that waits for many events takes them from
    /// [`event_stream`](Self::event_stream), which does so once.
    ///
    /// # Cancel safety
    /// A future that is dropped before it is ready has reported nothing. An event that was meant for it goes to the
    /// next one that waits.
    ///
    /// # Errors
    /// As [`try_wait`](Self::try_wait) and [`Readiness::new`](crate::Readiness::new).
    pub fn wait_async<'a>(
        &'a self,
        events: &'a mut [Event],
    ) -> impl Future<Output = Result<usize, Errno>> + Send + use<'a> {
        let attempt = move || self.some_events(events);
        Attempt::new(self.as_file_ref(), Events::IN, self.task_place(), attempt)
    }

    /// Returns the set's events as a stream. With the feature `futures-core` it implements `Stream`.
    ///
    /// The stream has a reference to the set, which keeps it open.
    ///
    /// # Errors
    /// As [`Readiness::new`](crate::Readiness::new).
    pub fn event_stream(&self) -> Result<EventStream, Errno> {
        let file = Target::File(self.as_file_ref());
        Ok(EventStream {
            wait: TaskWait::new(file, Events::IN, self.task_place())?,
            set: self.clone(),
            buffer: [Event::default(); EventStream::ROOM],
            next: 0,
            filled: 0,
        })
    }

    /// Returns the number of events, and whether one of them is a hang-up. `EAGAIN`: there is none.
    fn some_events(&self, events: &mut [Event]) -> Result<(usize, bool), Errno> {
        let mut found = self.try_wait(events)?;
        let backend = self.set().backend();
        let mut scans = 1;
        // Another thread has put back what it had no room for. Nobody is woken for that.
        while found == 0 && backend.is_some_and(KernelBackend::has_ready_members) {
            if scans == MOST_SCANS {
                // A scan each time, and the last one may have put something back: the tasks that wait look again later, this one
                // too.
                #[cfg(any(feature = "std", upoll_loom))]
                self.set().watched_by.wake_all(Events::FOR_CALLBACKS);
                break;
            }
            // This look may meet yet another scan.
            found = self.try_wait(events)?;
            scans += 1;
        }
        if found == 0 {
            return Err(Errno::AGAIN);
        }
        Ok((found, any_hangs_up(&events[..found])))
    }

    fn task_place(&self) -> Place {
        if self.set().rotates() {
            Place::ExclusiveTail
        } else {
            Place::Shared
        }
    }
}

/// The events of a set, one after the other, from [`Epoll::event_stream`]. It never ends.
///
/// It takes up to 16 events out of the set at once. A level-triggered event is reported again only after the events
/// that were taken with it, and only if the file is still ready then. An event that waits in the stream may be out of
/// date when it is returned.
///
/// # Cancel safety
/// Events that were taken stay in the stream until they are returned. They are lost with the stream, if they are
/// edge-triggered. A stream of a rotating set stays in line between two events: poll it on, or drop it, as an event that
/// it is chosen for waits for it.
pub struct EventStream {
    wait: TaskWait,
    set: Epoll,
    buffer: [Event; EventStream::ROOM],
    next: usize,
    filled: usize,
}

impl EventStream {
    const ROOM: usize = 16;

    /// Returns the next event, or has the task woken when there is one.
    ///
    /// # Errors
    /// As [`Epoll::try_wait`].
    pub fn poll_event(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Event, Errno>> {
        // SAFETY: `wait` is pinned as the whole is, and the rest is never pinned.
        let this = unsafe { self.get_unchecked_mut() };
        if this.next == this.filled {
            let (set, buffer) = (&this.set, &mut this.buffer);
            // SAFETY: as above.
            let wait = unsafe { Pin::new_unchecked(&mut this.wait) };
            let found = wait.poll_until(context.waker(), |_| match set.some_events(buffer) {
                Err(Errno::AGAIN) => None,
                Err(errno) => Some((Err(errno), true)),
                Ok((filled, hangs_up)) => Some((Ok(filled), hangs_up)),
            });
            match found {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(errno)) => return Poll::Ready(Err(errno)),
                Poll::Ready(Ok(filled)) => (this.next, this.filled) = (0, filled),
            }
        }
        let event = this.buffer[this.next];
        this.next += 1;
        Poll::Ready(Ok(event))
    }

    /// Returns the next event. The future waits while there is none. Dropping the future loses no event.
    ///
    /// # Errors
    /// As [`Epoll::try_wait`].
    pub async fn next_event(self: Pin<&mut Self>) -> Result<Event, Errno> {
        let mut this = self;
        core::future::poll_fn(move |context| this.as_mut().poll_event(context)).await
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream")
            .field("set", &self.set)
            .field("taken", &(self.filled - self.next))
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "futures-core")]
impl futures_core::Stream for EventStream {
    type Item = Result<Event, Errno>;

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Event, Errno>>> {
        self.poll_event(context).map(Some)
    }
}

#[cfg(all(test, feature = "std", not(upoll_loom)))]
mod tests {
    use core::pin::pin;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use core::task::Waker;
    use std::boxed::Box;
    use std::os::fd::BorrowedFd;
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;
    use crate::epoll::Set;
    use crate::epoll::interest::LockedSet;
    use crate::file::{Description, InKernel};
    use crate::wait::Deferred;

    /// A backend in which each harvest meets a scan of another thread, or has no ready members.
    struct Scanned {
        has_ready: bool,
        questions: AtomicUsize,
    }

    impl InKernel for Scanned {
        fn awaited_fd(&self, _: &Description, _: Events) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    impl KernelBackend for Scanned {
        fn is_awaited(&self) -> bool {
            false
        }
        fn has_unwoken_thread(&self) -> bool {
            false
        }
        fn wake_one(&self, _: &mut Deferred) {}
        fn is_ready(&self, _: &Set, _: bool) -> bool {
            true
        }
        fn harvest_both(&self, _: &Set, _: &mut [Event]) -> usize {
            0
        }
        fn restore_found_lost(&self, _: &Description<Set>) -> Result<(), Errno> {
            Ok(())
        }
        fn is_found_lost(&self) -> bool {
            false
        }
        fn losses(&self) -> u32 {
            0
        }
        fn nest_in(&self, _: &Description, _: &Description<Set>) -> Result<(), Errno> {
            Ok(())
        }
        fn nested_changed(&self, _: &LockedSet<'_>, _: &Description) {}
        fn listen(&self, _: &LockedSet<'_>, _: &Description) -> Result<(), Errno> {
            Ok(())
        }
        fn has_silent_members(&self) -> bool {
            false
        }
        fn close(&self) {}
        fn has_source(&self) -> bool {
            false
        }
        fn has_ready_members(&self) -> bool {
            self.questions.fetch_add(1, Ordering::Relaxed);
            self.has_ready
        }
        fn has_level_source(&self) -> bool {
            false
        }
        fn had_turn(&self, _: u32) {}
        fn apply_slack(&self, _: &Set) {}
        fn left_turn(&self, _: u32) {}
        fn count(&self) -> usize {
            1
        }
        fn show_fdinfo(&self, _: &mut dyn fmt::Write) -> fmt::Result {
            Ok(())
        }
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Polls a task three times that finds no event. Returns how often it was woken, and how often its set was asked for ready
    /// members.
    fn polled(has_ready: bool) -> [usize; 2] {
        let set = Epoll::new().unwrap();
        let scanned = Scanned {
            has_ready,
            questions: AtomicUsize::new(0),
        };
        let made = set.set().backend_or_insert(|| Ok(Box::new(scanned)));
        let backend: &dyn core::any::Any = made.ok().unwrap();
        let scanned: &Scanned = backend.downcast_ref().unwrap();
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let mut context = Context::from_waker(&waker);
        let mut events = [Event::default(); 4];
        let mut wait = pin!(set.wait_async(&mut events));
        for _ in 0..3 {
            assert!(wait.as_mut().poll(&mut context).is_pending());
        }
        [&wakes.0, &scanned.questions].map(|count| count.load(Ordering::Relaxed))
    }

    #[test]
    fn a_task_that_meets_scan_after_scan_looks_again_later() {
        assert_eq!(polled(true)[0], 3);
    }

    /// The kernel is asked.
    #[test]
    fn a_task_that_finds_nothing_asks_for_ready_members_once_for_each_look() {
        let looks = 6;
        assert_eq!(polled(false), [0, looks]);
    }
}
