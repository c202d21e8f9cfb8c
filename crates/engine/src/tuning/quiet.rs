//! When searches in idle time may measure: while no engine of the process has anything to do, since they share the
//! machine whatever model each of them holds.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::pace::Pace;

#[derive(Debug, Default)]
struct State {
    busy: usize,
    searches: Vec<Weak<Pace>>,
}

impl State {
    fn each(&mut self, act: impl Fn(&Pace)) {
        self.searches.retain(|search| search.upgrade().inspect(|pace| act(pace)).is_some());
    }
}

/// How many engines have something to do, and the searches that wait for there to be none.
#[derive(Debug, Default)]
pub(crate) struct Quiet(Mutex<State>);

impl Quiet {
    /// An engine has something to do: returns when nothing is measured, and nothing will be.
    pub(crate) fn end(&self) {
        let mut state = self.0.lock();
        state.busy += 1;
        if state.busy == 1 {
            state.each(Pace::hold);
        }
    }

    /// It has not any more.
    pub(crate) fn begin(&self) {
        let mut state = self.0.lock();
        state.busy -= 1;
        if state.busy == 0 {
            state.each(Pace::release);
        }
    }

    /// A search of an engine that has something to do at this moment.
    pub(crate) fn join(&self, search: &Arc<Pace>) {
        let mut state = self.0.lock();
        search.hold();
        state.searches.push(Arc::downgrade(search));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_waits_for_all_engines() {
        let (quiet, pace) = (Quiet::default(), Arc::new(Pace::default()));
        quiet.end();
        quiet.join(&pace);
        assert!(pace.is_held());
        quiet.end();
        quiet.begin();
        assert!(pace.is_held(), "the other engine is busy");
        quiet.begin();
        assert!(!pace.is_held());
        quiet.end();
        assert!(pace.is_held());
    }
}
