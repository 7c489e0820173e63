//! A reference model of an eventfd with a maximum, for counters of one process and for shared ones.
#![allow(dead_code, reason = "each test crate uses a part of it")]

use proptest::prelude::*;
use upoll::{Errno, EventFd, Events};

/// The rules, one line each.
pub struct Model {
    pub count: u64,
    pub maximum: u64,
    pub semaphore: bool,
}

impl Model {
    pub fn write(&mut self, value: u64) -> Result<(), Errno> {
        if value == u64::MAX {
            return Err(Errno::INVAL);
        }
        if u128::from(self.count) + u128::from(value) >= u128::from(self.maximum) {
            return Err(Errno::AGAIN);
        }
        self.count += value;
        Ok(())
    }

    pub fn read(&mut self) -> Result<u64, Errno> {
        let taken = match self.count {
            0 => return Err(Errno::AGAIN),
            _ if self.semaphore => 1,
            all => all,
        };
        self.count -= taken;
        Ok(taken)
    }

    pub fn signal(&mut self) {
        if self.count < self.maximum {
            self.count += 1;
        }
    }

    pub fn set_maximum(&mut self, maximum: u64) -> Result<(), Errno> {
        if self.count >= maximum {
            return Err(Errno::INVAL);
        }
        self.maximum = maximum;
        Ok(())
    }

    pub fn mask(&self) -> Events {
        let mut mask = Events::empty();
        mask.set(Events::IN, self.count > 0);
        mask.set(Events::ERR, self.count == self.maximum);
        mask.set(Events::OUT, self.maximum - 1 > self.count);
        mask
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Step {
    Write(u64),
    Read,
    Signal,
    SetMaximum(u64),
}

pub fn any_step() -> impl Strategy<Value = Step> {
    let value = prop_oneof![
        0..8_u64,
        (u64::MAX - 4)..=u64::MAX,
        Just(u64::MAX / 2),
        any::<u64>()
    ];
    prop_oneof![
        4 => value.clone().prop_map(Step::Write),
        3 => Just(Step::Read),
        2 => Just(Step::Signal),
        2 => value.prop_map(Step::SetMaximum),
    ]
}

const ALL: [Events; 3] = [Events::IN, Events::OUT, Events::ERR];

pub fn mask_of(counter: &EventFd) -> Events {
    let file = counter.as_file_ref();
    ALL.into_iter().filter(|&bit| file.is_ready(bit)).collect()
}

/// The initial value of the counter and of the model.
pub fn initial() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0_u32), 0..6_u32, Just(u32::MAX)]
}

/// Checks that `counter` and the model return the same results for the same steps.
pub fn follows_the_model(
    counter: &EventFd,
    initial: u32,
    steps: Vec<Step>,
) -> Result<(), TestCaseError> {
    let twin = counter.clone();
    let semaphore = counter.is_semaphore();
    let mut model = Model {
        count: initial.into(),
        maximum: u64::MAX,
        semaphore,
    };
    for step in steps {
        match step {
            Step::Write(value) => prop_assert_eq!(counter.try_write(value), model.write(value)),
            Step::Read => prop_assert_eq!(counter.try_read(), model.read()),
            Step::Signal => {
                counter.signal();
                model.signal();
            }
            Step::SetMaximum(maximum) => {
                prop_assert_eq!(twin.set_maximum(maximum), model.set_maximum(maximum));
            }
        }
        prop_assert_eq!(counter.maximum(), model.maximum);
        prop_assert_eq!(mask_of(counter), model.mask(), "after {:?}", step);
        let fdinfo = format!(
            "eventfd-count: {:16x}\neventfd-semaphore: {}\neventfd-maximum: {:16x}\n",
            model.count,
            i32::from(semaphore),
            model.maximum
        );
        prop_assert_eq!(counter.fdinfo().unwrap(), fdinfo);
    }
    Ok(())
}
