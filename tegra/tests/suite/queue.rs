//! The queue with a GPU that consumes entries at its own pace.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use orind_testing::random::Random;
use proptest::prelude::*;
use tegra::pushbuffer::{Acquire, Condition, Entry, Operation, Payload, Release, decode};
use tegra::queue::{
    Port, Queue, QueueConfig, QueueError, SubmitError, TAIL_BYTES, TAIL_WORDS, Wake,
};

use super::at;

const TAILS: u64 = 0x4000_0000;
const TIMELINE: u64 = 0x8000_0010;

/// Memory that the queue and the GPU share, and the GPU's state.
#[derive(Default)]
struct Device {
    ring: Vec<u64>,
    tails: Vec<[u32; TAIL_WORDS]>,
    put: u32,
    get: u32,
    timeline: u64,
    doorbells: u32,
    interrupts: u32,
    /// GP_PUT as the GPU read it at the last doorbell.
    known_put: u32,
    /// Executed streams, in order, without tails.
    ran: VecDeque<Entry>,
}

impl Device {
    /// Runs one entry, if there is one.
    fn step(&mut self) -> bool {
        if self.get == self.known_put {
            return false;
        }
        let entry = Entry::decode(self.ring[self.get as usize]).expect("a fetch");
        self.get = (self.get + 1) % self.ring.len() as u32;
        let address = entry.address().get();
        let end = TAILS + self.tails.len() as u64 * TAIL_BYTES;
        if !(TAILS..end).contains(&address) {
            self.ran.push_back(entry);
            return true;
        }
        let tail = self.tails[((address - TAILS) / TAIL_BYTES) as usize];
        let operations = decode(&tail[..entry.words() as usize]).expect("a tail");
        self.timeline = self.timeline.wrapping_add(1);
        let release = Release::new(at(TIMELINE), Payload::Long(self.timeline))
            .and_then(Release::with_timestamp)
            .expect("aligned");
        assert_eq!(operations[0], Operation::Release(release), "values are released in order");
        match operations[1..] {
            [] => {}
            [Operation::NonStallInterrupt] => self.interrupts += 1,
            _ => panic!("{operations:?}"),
        }
        true
    }
}

#[derive(Clone)]
struct Shared(Rc<RefCell<Device>>);

impl Port for Shared {
    fn store_entry(&mut self, index: u32, entry: u64) {
        let mut device = self.0.borrow_mut();
        // No entry between GET and PUT may be written: the GPU may be reading it.
        let size = device.ring.len() as u32;
        let in_flight = (device.put + size - device.get) % size;
        assert!((index + size - device.get) % size >= in_flight, "entry {index} is in flight");
        device.ring[index as usize] = entry;
    }
    fn store_tail(&mut self, index: u32, word: usize, value: u32) {
        self.0.borrow_mut().tails[index as usize][word] = value;
    }
    fn order_work_before_put(&mut self) {}
    fn store_put(&mut self, index: u32) {
        self.0.borrow_mut().put = index;
    }
    fn order_put_before_doorbell(&mut self) {}
    fn ring_doorbell(&mut self) {
        let mut device = self.0.borrow_mut();
        device.doorbells += 1;
        device.known_put = device.put;
    }
    fn load_timeline(&self) -> u64 {
        self.0.borrow().timeline
    }
}

fn config(entries: u32, start: u64) -> QueueConfig {
    QueueConfig { entries, tails: at(TAILS), timeline: at(TIMELINE), start }
}

fn queue(entries: u32, start: u64) -> (Queue<Shared>, Rc<RefCell<Device>>) {
    let device = Rc::new(RefCell::new(Device {
        ring: vec![u64::MAX; entries as usize],
        tails: vec![[u32::MAX; TAIL_WORDS]; entries as usize],
        timeline: start,
        ..Device::default()
    }));
    let queue = Queue::new(Shared(Rc::clone(&device)), config(entries, start)).expect("valid");
    (queue, device)
}

/// A body that differs from all others.
fn body(number: u64) -> Entry {
    Entry::new(at(0x10_0000_0000 + number % (1 << 30) * 4), 1).expect("in range")
}

#[test]
fn a_submission_writes_the_words_seen_on_hardware() {
    let (mut queue, device) = queue(8, 41);
    let point = queue.submit(&[body(1), body(2)], Wake::Interrupt).unwrap();
    assert_eq!(point.value(), 42);
    assert_eq!((queue.last(), queue.room()), (point, 4));
    {
        let device = device.borrow();
        assert_eq!((device.put, device.doorbells), (3, 1));
        assert_eq!(device.ring[..2], [body(1).encode(), body(2).encode()]);
        // The words seen on hardware, with this queue's address and value.
        assert_eq!(
            device.tails[2],
            [0x2005_0017, 0x8000_0010, 0, 42, 0, 0x0310_0001, 0x2001_0008, 0]
        );
    }
    assert!(!queue.is_reached(point).unwrap());
    while device.borrow_mut().step() {}
    assert!(queue.is_reached(point).unwrap());
    assert_eq!(queue.room(), 7);
    assert_eq!(device.borrow().interrupts, 1);
    let wait = Acquire::new(at(TIMELINE), Payload::Long(42), Condition::Reached);
    assert_eq!(queue.acquire(point), wait);
}

#[test]
fn an_empty_submission_is_a_tail() {
    let (mut queue, device) = queue(2, 0);
    for value in 1..100 {
        let point = queue.submit(&[], Wake::Quiet).unwrap();
        assert_eq!(point.value(), value);
        assert_eq!(queue.submit(&[], Wake::Quiet), Err(SubmitError::Full { needed: 1, room: 0 }));
        assert!(device.borrow_mut().step());
    }
    assert_eq!(device.borrow().interrupts, 0);
}

#[test]
fn a_full_ring_refuses_and_writes_nothing() {
    let (mut queue, device) = queue(4, 0);
    queue.submit(&[body(1)], Wake::Quiet).unwrap();
    let ring = device.borrow().ring.clone();
    let full = SubmitError::Full { needed: 2, room: 1 };
    assert_eq!(queue.submit(&[body(2)], Wake::Quiet), Err(full));
    let long = SubmitError::TooLong { needed: 4, capacity: 3 };
    assert_eq!(queue.submit(&[body(2); 3], Wake::Quiet), Err(long));
    assert_eq!(device.borrow().ring, ring);
    assert_eq!((device.borrow().put, device.borrow().doorbells), (2, 1));
    // A fetched entry is not free yet; one whose value was released is.
    device.borrow_mut().step();
    assert_eq!(queue.submit(&[body(2)], Wake::Quiet), Err(full));
    device.borrow_mut().step();
    assert!(queue.submit(&[body(2)], Wake::Quiet).is_ok());
}

#[test]
fn an_impossible_timeline_value_is_an_error() {
    let (mut queue, device) = queue(8, 10);
    queue.submit(&[], Wake::Quiet).unwrap();
    queue.submit(&[], Wake::Quiet).unwrap();
    let lie = |found| QueueError::Timeline { found, completed: 10, submitted: 12 };
    for found in [13, 9, u64::MAX, 1 << 63] {
        device.borrow_mut().timeline = found;
        assert_eq!(queue.poll(), Err(lie(found)));
    }
    device.borrow_mut().timeline = 12;
    assert_eq!(queue.poll(), Ok(queue.last()));
    device.borrow_mut().timeline = 11;
    assert!(queue.poll().is_err(), "it decreased");
    assert!(matches!(queue.submit(&[body(0); 7], Wake::Quiet), Err(SubmitError::TooLong { .. })));
}

#[test]
fn invalid_memory_is_refused() {
    let (queue, _device) = queue(2, 0);
    let port = queue.port();
    let new = |config| Queue::new(port.clone(), config).map(drop);
    for entries in [0, 1, 3, 6, 1 << 21] {
        assert_eq!(new(config(entries, 0)), Err(QueueError::Entries { entries }));
    }
    let unaligned = QueueConfig { timeline: at(TIMELINE + 8), ..config(2, 0) };
    assert!(matches!(new(unaligned), Err(QueueError::Operation(_))));
    let unaligned = QueueConfig { tails: at(TAILS + 2), ..config(2, 0) };
    assert!(matches!(new(unaligned), Err(QueueError::Entry(_))));
    let beyond = QueueConfig { tails: at((1 << 40) - TAIL_BYTES), ..config(2, 0) };
    assert!(matches!(new(beyond), Err(QueueError::Operation(_))));
}

/// Submits and lets the GPU run, at a pace chosen by `random`, until `entries` were written.
fn soak(size: u32, start: u64, entries: u64, mut random: impl FnMut() -> u64) {
    let (mut queue, device) = queue(size, start);
    let (mut written, mut bodies_in, mut bodies_out) = (0u64, 0u64, 0u64);
    let mut first_unreached = VecDeque::new();
    let mut refused_in_a_row = 0;
    while written < entries {
        let choice = random();
        let count = (choice >> 8) as usize % queue.capacity();
        let bodies: Vec<_> = (bodies_in..).take(count).map(body).collect();
        match queue.submit(&bodies, Wake::Quiet) {
            Ok(point) => {
                refused_in_a_row = 0;
                written += count as u64 + 1;
                bodies_in += count as u64;
                first_unreached.push_back(point);
            }
            Err(SubmitError::Full { needed, room }) => {
                assert!(needed > room);
                refused_in_a_row += 1;
                assert!(refused_in_a_row < 10_000, "stuck after {written} entries");
            }
            Err(error) => panic!("{error}"),
        }
        for _ in 0..choice % 16 {
            device.borrow_mut().step();
        }
        let mut device = device.borrow_mut();
        while let Some(ran) = device.ran.pop_front() {
            assert_eq!(ran, body(bodies_out));
            bodies_out += 1;
        }
        drop(device);
        while let Some(point) = first_unreached.front() {
            let reached = queue.is_reached(*point).expect("a valid timeline");
            let released = queue.port().load_timeline().wrapping_sub(point.value()) as i64 >= 0;
            assert_eq!(reached, released);
            if !reached {
                break;
            }
            first_unreached.pop_front();
        }
    }
    while device.borrow_mut().step() {}
    assert_eq!(queue.poll(), Ok(queue.last()));
    assert_eq!(queue.room(), queue.capacity());
}

/// A million entries through a small ring, whose timeline wraps around its 64 bits.
#[test]
fn a_million_entries_wrap_around() {
    let mut random = Random(0x5eed_0000_0000_0001);
    soak(64, u64::MAX - 10_000, 1_000_000, || random.bits());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn queues_work_at_any_pace_and_size(
        bits in 1..8u32, start in any::<u64>(), pace in prop::collection::vec(any::<u64>(), 1..40),
    ) {
        let mut pace = pace.into_iter().cycle();
        // A pace of only zeros would never let the GPU run.
        let mut turn = 0;
        soak(1 << bits, start, 2_000, || { turn += 1; pace.next().unwrap_or(0) | u64::from(turn % 8 == 0) });
    }
}
