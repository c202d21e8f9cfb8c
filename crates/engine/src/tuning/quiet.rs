//! Coordination of idle tuning: searches measure only while all engines of the process are idle, because
//! engines share the machine.

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

/// Number of busy engines, and the searches that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Quiet(Mutex<State>);

impl Quiet {
    /// Marks an engine as busy. Returns when no search measures.
    pub(crate) fn end(&self) {
        let mut state = self.0.lock();
        state.busy += 1;
        if state.busy == 1 {
            state.each(Pace::hold);
        }
    }

    /// Marks an engine as idle.
    pub(crate) fn begin(&self) {
        let mut state = self.0.lock();
        state.busy -= 1;
        if state.busy == 0 {
            state.each(Pace::release);
        }
    }

    /// Adds a search of an engine that is busy at this moment.
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
