//! Tasks at channels.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod task;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;

use task::{Waiting, block_on, polled, waiting};
use upoll::channel::{RecvError, SendError, TryRecvError, bounded};
use upoll::{EventFd, Events, Readiness, Watch};

/// A message whose drop wakes a task, and notes whether that has run before the drop ends.
struct Wakes {
    counter: EventFd,
    waiting: Waiting,
    has_run: Arc<AtomicUsize>,
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.counter.try_write(1).unwrap();
        let (_, task) = &self.waiting;
        self.has_run.fetch_add(task.woken(), Ordering::SeqCst);
    }
}

fn message(has_run: &Arc<AtomicUsize>) -> Wakes {
    let counter = EventFd::new(0).unwrap();
    Wakes {
        waiting: waiting(Readiness::new(&counter, Events::IN)),
        counter,
        has_run: has_run.clone(),
    }
}

/// Such a message may be a thread that is told to end, and joined.
#[test]
fn a_message_that_is_dropped_with_the_last_receiver_may_wait_for_what_it_wakes() {
    let has_run = Arc::new(AtomicUsize::new(0));
    let message = || message(&has_run);
    let (sender, receiver) = bounded(2).unwrap();
    assert!(sender.try_send(message()).is_ok());
    assert!(sender.try_send(message()).is_ok());
    // It keeps the memory of the file.
    let _keeping = Readiness::new(&receiver, Events::IN).unwrap();
    drop(receiver);
    assert_eq!(has_run.load(Ordering::SeqCst), 2);
    // The file is the last to close, and a sender stays.
    let (sender, receiver) = bounded(1).unwrap();
    assert!(sender.try_send(message()).is_ok());
    let file = receiver.as_file_ref().to_file();
    let _keeping_too = Readiness::new(&receiver, Events::IN).unwrap();
    drop(receiver);
    assert_eq!(has_run.load(Ordering::SeqCst), 2);
    drop(file);
    assert_eq!(has_run.load(Ordering::SeqCst), 3);
}

/// A callback learns of the close of the receiver, and drops the sender in return. The messages are the receiver's to drop,
/// outside the callback.
#[test]
fn a_sender_that_a_callback_drops_at_the_close_of_the_receiver_drops_no_message() {
    let has_run = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = bounded(1).unwrap();
    assert!(sender.try_send(message(&has_run)).is_ok());
    let kept = Arc::new(Mutex::new(None));
    let dropped = kept.clone();
    let drop_it = move |_| drop(dropped.lock().unwrap().take());
    let (_watch, _) = Watch::new(&sender, Events::ERR, drop_it).unwrap();
    *kept.lock().unwrap() = Some(sender);
    drop(receiver);
    assert!(kept.lock().unwrap().is_none());
    assert_eq!(has_run.load(Ordering::SeqCst), 1);
}

/// Tasks, and threads that wait in calls, on both ends.
#[test]
fn tasks_and_threads_send_and_receive_each_message_once() {
    const EACH: u64 = 500;
    for capacity in [1, 3] {
        let (sender, receiver) = bounded(capacity).unwrap();
        let sum: u64 = thread::scope(|scope| {
            for task in 0..4 {
                let sender = sender.clone();
                scope.spawn(move || {
                    for message in 0..EACH {
                        match task % 2 {
                            0 => sender.send(message).unwrap(),
                            _ => block_on(sender.send_async(message)).unwrap(),
                        }
                    }
                });
            }
            drop(sender);
            let receive = |task: usize| {
                let receiver = receiver.clone();
                move || {
                    let next = || match task % 2 {
                        0 => receiver.recv(),
                        _ => block_on(receiver.recv_async()),
                    };
                    std::iter::from_fn(|| next().ok()).sum::<u64>()
                }
            };
            let receiving = [0, 1, 2, 3].map(|task| scope.spawn(receive(task)));
            receiving.map(|thread| thread.join().unwrap()).iter().sum()
        });
        assert_eq!(sum, 4 * EACH * (EACH - 1) / 2);
    }
}

#[test]
fn a_send_of_a_task_that_ends_early_has_sent_nothing() {
    let (sender, receiver) = bounded(1).unwrap();
    let task = Arc::default();
    let message = Arc::new(1);
    sender.try_send(message.clone()).unwrap();
    let mut send = Box::pin(sender.send_async(message.clone()));
    assert!(polled(send.as_mut(), &task).is_pending());
    drop(receiver.try_recv());
    assert_eq!(task.woken(), 1);
    drop(send);
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    assert_eq!(Arc::strong_count(&message), 1);
}

#[test]
fn a_receive_of_a_task_that_ends_early_has_taken_nothing() {
    let (sender, receiver) = bounded(1).unwrap();
    let task = Arc::default();
    let mut receive = Box::pin(receiver.recv_async());
    assert!(polled(receive.as_mut(), &task).is_pending());
    sender.try_send(1).unwrap();
    assert_eq!(task.woken(), 1);
    drop(receive);
    assert_eq!(receiver.try_recv(), Ok(1));
}

#[test]
fn the_last_of_one_end_of_a_channel_ends_the_waits_of_tasks_at_the_other() {
    let (sender, receiver) = bounded::<u32>(1).unwrap();
    let task = Arc::default();
    let mut receives = [(); 2].map(|()| Box::pin(receiver.recv_async()));
    for receive in &mut receives {
        assert!(polled(receive.as_mut(), &task).is_pending());
    }
    drop(sender);
    assert_eq!(task.woken(), 2);
    for receive in &mut receives {
        assert_eq!(polled(receive.as_mut(), &task), Poll::Ready(Err(RecvError)));
    }

    let (sender, receiver) = bounded(1).unwrap();
    sender.try_send(0).unwrap();
    let task = Arc::default();
    let mut sends = [1, 2].map(|message| Box::pin(sender.send_async(message)));
    for send in &mut sends {
        assert!(polled(send.as_mut(), &task).is_pending());
    }
    drop(receiver);
    assert_eq!(task.woken(), 2);
    for (send, message) in sends.iter_mut().zip(1..) {
        let failed = Err(SendError(message));
        assert_eq!(polled(send.as_mut(), &task), Poll::Ready(failed));
    }
}
