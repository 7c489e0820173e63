//! Channels: senders and receivers that sleep, sets, and closes. A lost wakeup is a deadlock.

use loom::thread;
use upoll::channel::{Receiver, RecvError, SendError, Sender, TryRecvError, bounded, unbounded};
use upoll::kernel_model::{interrupt, pass_time};
use upoll::{Clock, Epoll, Event, Events, Rule, Timeout};

use super::rotation::{harvest, workers};
use super::{EDGE, Waiter, hears_of, model, must_fail_without, set_of};

fn receive_on_thread(receiver: &Receiver<u32>) -> thread::JoinHandle<Result<u32, RecvError>> {
    let receiver = receiver.clone();
    thread::spawn(move || receiver.recv())
}

fn send_on_thread(
    sender: &Sender<u32>,
    message: u32,
) -> thread::JoinHandle<Result<(), SendError<u32>>> {
    let sender = sender.clone();
    thread::spawn(move || sender.send(message))
}

/// Returns a channel with the messages 0 to `capacity - 1`, which fill it.
fn full(capacity: u32) -> (Sender<u32>, Receiver<u32>) {
    let (sender, receiver) = bounded(capacity as usize).unwrap();
    for message in 0..capacity {
        sender.try_send(message).unwrap();
    }
    (sender, receiver)
}

#[test]
fn a_receiver_that_goes_to_sleep_misses_no_message() {
    model(4, || {
        let (sender, receiver) = unbounded().unwrap();
        let sending = send_on_thread(&sender, 1);
        assert_eq!(receiver.recv(), Ok(1));
        assert_eq!(sending.join().unwrap(), Ok(()));
    });
}

#[test]
fn a_sender_that_goes_to_sleep_at_a_full_channel_misses_no_receive() {
    model(4, || {
        let (sender, receiver) = full(1);
        let sending = send_on_thread(&sender, 1);
        assert_eq!(receiver.recv(), Ok(0));
        assert_eq!(sending.join().unwrap(), Ok(()));
        assert_eq!(receiver.try_recv(), Ok(1));
    });
}

/// Only the first message wakes a receiver, which wakes the next as it leaves one.
#[test]
fn each_of_two_receivers_asleep_has_a_message() {
    model(3, || {
        let (sender, receiver) = unbounded().unwrap();
        let receiving = [(); 2].map(|()| receive_on_thread(&receiver));
        sender.try_send(1).unwrap();
        sender.try_send(2).unwrap();
        let mut received = receiving.map(|receiving| receiving.join().unwrap());
        received.sort_unstable_by_key(|received| received.ok());
        assert_eq!(received, [Ok(1), Ok(2)]);
    });
}

/// Only the first receive wakes a sender, which wakes the next as it leaves room.
#[test]
fn each_of_two_senders_asleep_has_room() {
    model(3, || {
        let (sender, receiver) = full(2);
        let sending = [2, 3].map(|message| send_on_thread(&sender, message));
        assert_eq!(receiver.try_recv(), Ok(0));
        assert_eq!(receiver.try_recv(), Ok(1));
        for sending in sending {
            assert_eq!(sending.join().unwrap(), Ok(()));
        }
        assert_eq!(receiver.len(), 2);
    });
}

/// Two senders and two receivers over a channel that holds one message.
#[test]
fn senders_and_receivers_that_sleep_in_turn_lose_no_message() {
    model(2, || {
        let (sender, receiver) = bounded(1).unwrap();
        let sending = [1, 2].map(|message| send_on_thread(&sender, message));
        let mut received = [receiver.recv(), receiver.recv()];
        received.sort_unstable_by_key(|received| received.ok());
        assert_eq!(received, [Ok(1), Ok(2)]);
        for sending in sending {
            assert_eq!(sending.join().unwrap(), Ok(()));
        }
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    });
}

#[test]
fn the_close_by_the_last_sender_wakes_all_receivers() {
    model(3, || {
        let (sender, receiver) = unbounded().unwrap();
        let receiving = [(); 2].map(|()| receive_on_thread(&receiver));
        drop(sender);
        for receiving in receiving {
            assert_eq!(receiving.join().unwrap(), Err(RecvError));
        }
    });
}

/// A sender that sends and goes, on a thread of its own, is not taken for one that only goes.
#[test]
fn the_last_message_comes_before_the_close() {
    model(3, || {
        let (sender, receiver) = unbounded().unwrap();
        let last = thread::spawn(move || sender.send(1));
        assert_eq!(receiver.recv(), Ok(1));
        assert_eq!(receiver.recv(), Err(RecvError));
        assert_eq!(last.join().unwrap(), Ok(()));
    });
}

#[test]
fn the_close_by_the_last_receiver_wakes_all_senders() {
    model(3, || {
        let (sender, receiver) = full(1);
        let sending = [1, 2].map(|message| send_on_thread(&sender, message));
        drop(receiver);
        for (message, sending) in (1..).zip(sending) {
            assert_eq!(sending.join().unwrap(), Err(SendError(message)));
        }
    });
}

/// A time limit that ends at any moment takes no message along, and no wakeup. Only the first message wakes a
/// receiver.
#[test]
fn a_receiver_whose_time_is_up_leaves_the_message_to_another() {
    model(2, || {
        let (sender, receiver) = unbounded().unwrap();
        let short = receiver.clone();
        let short = thread::spawn(move || {
            let limit = core::time::Duration::from_nanos(1);
            short.recv_timeout(Timeout::after(Clock::Monotonic, limit))
        });
        let receiving = receive_on_thread(&receiver);
        pass_time();
        sender.try_send(1).unwrap();
        sender.try_send(2).unwrap();
        assert!(receiving.join().unwrap().is_ok());
        let received = usize::from(short.join().unwrap().is_ok());
        assert_eq!(receiver.len(), 1 - received);
    });
}

/// A signal handler that runs at any moment ends no wait.
#[test]
fn a_receiver_that_a_signal_wakes_waits_on() {
    model(3, || {
        let (sender, receiver) = unbounded().unwrap();
        let receiving = receive_on_thread(&receiver);
        interrupt();
        sender.try_send(1).unwrap();
        assert_eq!(receiving.join().unwrap(), Ok(1));
    });
}

/// Register then poll, against send then wake, at both ends.
fn registering_against_sending() {
    model(4, || {
        let (sender, receiver) = unbounded().unwrap();
        hears_of(receiver.as_file_ref(), Events::IN, move || {
            sender.try_send(1).unwrap();
            sender
        });
    });
}

#[test]
fn a_waiter_that_registers_and_polls_misses_no_message() {
    registering_against_sending();
}

#[test]
fn a_waiter_that_does_not_poll_after_registering_misses_a_message() {
    must_fail_without(Rule::LookAfterRegistering, registering_against_sending);
}

#[test]
fn a_waiter_that_registers_and_polls_misses_no_room() {
    model(4, || {
        let (sender, receiver) = full(1);
        hears_of(sender.as_file_ref(), Events::OUT, move || {
            assert_eq!(receiver.try_recv(), Ok(0));
            receiver
        });
    });
}

#[test]
fn a_waiter_that_registers_and_polls_misses_no_close() {
    model(4, || {
        let (sender, receiver) = bounded::<u32>(1).unwrap();
        hears_of(receiver.as_file_ref(), Events::HUP, move || drop(sender));
        let (sender, receiver) = full(1);
        hears_of(sender.as_file_ref(), Events::ERR, move || drop(receiver));
    });
}

/// Each of two messages is an edge, although the second one finds the channel not empty.
#[test]
fn an_edge_triggered_receiver_that_takes_all_misses_no_message() {
    model(3, || {
        let (sender, receiver) = unbounded().unwrap();
        let set = set_of(&receiver, EDGE);
        let sending = thread::spawn(move || {
            sender.try_send(1).unwrap();
            sender.try_send(2).unwrap();
            sender
        });
        let mut received = Vec::new();
        while received.len() < 2 {
            assert_eq!(set.wait(&mut [Event::default()], None), Ok(1));
            received.extend(receiver.try_iter());
        }
        assert_eq!(received, [1, 2]);
        let _open = sending.join().unwrap();
    });
}

/// Two exclusive waiters at one channel: the one that a message has chosen leaves, and the other one learns
/// of the message.
fn leaving_exclusively() {
    model(3, || {
        let (sender, receiver) = unbounded().unwrap();
        let event = Event::new(Events::IN | Events::EXCLUSIVE, 0);
        let sets = [(); 2].map(|()| Epoll::new().unwrap());
        for set in &sets {
            set.add(&receiver, event).unwrap();
        }
        let [leaving, staying] = sets;
        let waiters = [Waiter::in_set(&leaving), Waiter::in_set(&staying)];
        let sending = thread::spawn(move || {
            sender.try_send(1).unwrap();
            sender
        });
        leaving.delete(&receiver).unwrap();
        let _open = sending.join().unwrap();
        assert!(waiters[1].has_heard());
        assert_eq!(staying.try_wait(&mut [Event::default()]), Ok(1));
    });
}

#[test]
fn an_exclusive_waiter_that_leaves_forwards_the_message() {
    leaving_exclusively();
}

/// A worker of a rotating set leaves while a message chooses it. The worker that stays has the message.
fn leaving_in_turn() {
    model(4, || {
        let (sender, receiver) = unbounded().unwrap();
        let (rotating, [first, second]) = workers(&receiver);
        let _waiting = [&first, &second].map(Waiter::in_set);
        let sending = thread::spawn(move || {
            sender.try_send(1).unwrap();
            sender
        });
        first.delete(&rotating).unwrap();
        let _open = sending.join().unwrap();
        assert_eq!(harvest(&second), 1);
    });
}

#[test]
fn a_chosen_worker_that_leaves_forwards_the_message() {
    leaving_in_turn();
}

#[test]
fn a_worker_that_leaves_with_its_claim_loses_the_message() {
    must_fail_without(Rule::ForwardWhenLeaving, leaving_in_turn);
}

/// A receiver in a set and one asleep: the message goes to one of them, once.
#[test]
fn a_message_is_received_once() {
    model(3, || {
        let (sender, receiver) = bounded(1).unwrap();
        let other = receiver.clone();
        let taking = thread::spawn(move || other.try_recv());
        sender.try_send(1).unwrap();
        let here = receiver.try_recv();
        let there = taking.join().unwrap();
        assert_eq!(
            u32::from(here == Ok(1)) + u32::from(there == Ok(1)) + receiver.len() as u32,
            1
        );
    });
}
