//! Loads from the scheduler's side: starts and cancels them, and takes their results.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::Sender;

use super::Scheduler;
use crate::command::{Command, PendingLoad};
use crate::idle_tuning::IdleTuning;
use crate::loaded_model::LoadedModel;
use crate::loader::{Job, Loader, Resident, Thread};
use crate::prefix_files::PrefixFiles;
use crate::sequence::Sequence;
use crate::shared::{Served, TunedDevice};
use crate::slots::Slots;
use crate::stall::Stall;
use crate::{GenerateError, LoadError, LoadEvent, Loading, State};
use device::MAX_SUBMISSIONS;

impl Scheduler {
    /// Loads the model again after its device was lost: on the same device if it is still usable, or else on the next
    /// one. Active requests wait.
    pub(super) fn reload(&mut self, failed: &str) {
        let Some(lost) = self.model.take() else {
            unreachable!("only a loaded model runs steps");
        };
        // Idle tuning uses the device too.
        self.idle_tuning = None;
        // A pending load of another model continues when the active requests are done.
        let postponed = self.loader.take().and_then(|loader| loader.cancel().0);
        self.idle_work.extend(postponed.map(Command::Load));
        let (device, model) = (lost.runner.device(), Box::new(lost.runner.model().clone()));
        let what = format!("reloading {} after the loss of device {device}", model.id);
        tracing::warn!(
            model = model.id,
            device,
            requests = self.active.len(),
            "reloading the model"
        );
        self.shared.set_state(State::Exclusive { what, model });
        self.lost = Some(failed.to_owned());
        self.start_load(Job::Again(Box::new(lost)), None);
    }

    /// Restarts the active requests on the reloaded model, or fails them if it cannot be loaded.
    pub(super) fn reloaded(&mut self, result: Result<LoadedModel, LoadError>, failed: &str) {
        match result {
            Ok(reloaded) => {
                let (model, device) = (&reloaded.runner.model().id, reloaded.runner.device());
                tracing::warn!(model, device, requests = self.active.len(), "model reloaded");
                self.attach(reloaded);
                self.active.iter_mut().for_each(Sequence::restart);
                self.set_ready();
            }
            Err(error) => {
                tracing::error!(%error, "reloading the model failed");
                let why = format!("{failed}; reloading the model failed: {error}");
                *self.shared.given_up.lock() = Some(error);
                self.unload();
                // Set the state before clients see the error and query it.
                self.set_ready();
                let error = GenerateError::Device(why);
                self.fail_active(&error);
                self.fail_waiting(&error);
                self.slots = Slots::default();
            }
        }
    }

    pub(super) fn begin_load(&mut self, pending: PendingLoad) {
        let before = self.cancel_load(LoadError::GivenUp("another model is being loaded"));
        *self.shared.given_up.lock() = None;
        self.idle_tuning = None;
        let loading = Loading { model: pending.spec.model.clone(), progress: 0.0 };
        *self.shared.loading.lock() = Some(loading);
        self.start_load(Job::New(pending), before);
    }

    pub(super) fn start_load(&mut self, job: Job, before: Option<Thread>) {
        self.loads += 1;
        let resident = self.model.as_ref().map(|model| Resident {
            model: model.runner.model().id.clone(),
            device: Arc::clone(model.runner.device_of()),
            bytes: model.resident_bytes(),
        });
        let link = (Arc::clone(&self.shared), self.reports.0.clone());
        let pending = if let Job::New(pending) = &job { Some(pending.clone()) } else { None };
        match Loader::start(self.loads, job, resident, before, link) {
            Ok(loader) => self.loader = Some(loader),
            Err(error) => {
                let failed =
                    LoadError::Device(format!("cannot start the thread of a load: {error}"));
                self.take_result(pending.as_ref(), Err(failed));
            }
        }
    }

    /// Cancels the load in progress, and fails requests that wait for a lost model.
    pub(super) fn cancel_load(&mut self, why: LoadError) -> Option<Thread> {
        let loader = self.loader.take()?;
        *self.shared.loading.lock() = None;
        if let Some(failed) = self.lost.take() {
            self.reloaded(Err(why.clone()), &failed);
        }
        let (pending, thread) = loader.cancel();
        if let Some(pending) = pending {
            pending.report(LoadEvent::Failed(why));
        }
        Some(thread)
    }

    /// True unless the load with that number was cancelled.
    pub(super) fn is_current_load(&self, order: u64) -> bool {
        self.loader.as_ref().is_some_and(|loader| loader.order == order)
    }

    pub(super) fn make_room(&mut self, order: u64, done: &Sender<()>) {
        if self.is_current_load(order) {
            self.unload();
            self.slots = Slots::default();
            self.fail_waiting(&GenerateError::Stopping);
            self.set_ready();
            // The load may have failed in the meantime.
            let _ = done.send(());
        }
    }

    pub(super) fn load_finished(&mut self, order: u64, result: Result<LoadedModel, LoadError>) {
        let Some(loader) = self.loader.take_if(|loader| loader.order == order) else {
            // The load was cancelled: drop its result.
            return;
        };
        match self.lost.take() {
            Some(failed) => self.reloaded(result, &failed),
            None => self.take_result(loader.pending.as_ref(), result),
        }
    }

    /// Takes the result of a load and reports it.
    pub(super) fn take_result(
        &mut self,
        pending: Option<&PendingLoad>,
        result: Result<LoadedModel, LoadError>,
    ) {
        let event = match result {
            Ok(model) => {
                self.unload();
                self.fail_waiting(&GenerateError::Stopping);
                self.adopt(model)
            }
            Err(error) => {
                tracing::error!(model = pending.map(|pending| &pending.spec.model), %error, "load failed");
                LoadEvent::Failed(error)
            }
        };
        self.set_ready();
        *self.shared.loading.lock() = None;
        if let Some(pending) = pending {
            pending.report(event);
        }
    }

    pub(super) fn adopt(&mut self, model: LoadedModel) -> LoadEvent {
        let info = model.runner.model().clone();
        let took = Duration::from_secs_f64(info.load_s);
        tracing::info!(model = info.id, device = info.device.name, ?took, "model loaded");
        self.load = self.loads;
        self.active = Vec::with_capacity(model.runner.slots());
        self.attach(model);
        LoadEvent::Loaded(Box::new(info))
    }

    pub(super) fn attach(&mut self, mut model: LoadedModel) {
        let runner = &mut model.runner;
        self.in_flight = VecDeque::with_capacity(MAX_SUBMISSIONS);
        self.slots = Slots::new(runner.division());
        self.rows = Vec::with_capacity(runner.slots());
        self.tokens = Vec::with_capacity(runner.slots());
        self.logits = vec![0.0; runner.vocabulary()];
        let (info, text) = (runner.model().clone(), Arc::clone(runner.text()));
        *self.shared.served.lock() = Some(Arc::new(Served { model: info, text, load: self.load }));
        let (device, _, tuning) = runner.tunable();
        *self.shared.tuned_device.lock() = Some(TunedDevice { device, tuning: tuning.clone() });
        self.stall = Stall::new(runner.spec().stall);
        let counts = *self.shared.prefixes.lock();
        self.prefix_files = PrefixFiles::open(runner, counts, &self.shared.directories);
        self.publish_prefix_counts();
        self.idle_tuning = IdleTuning::start(runner.tunable(), &self.shared);
        self.model = Some(model);
    }

    /// Ends idle tuning first, which uses the device too.
    pub(super) fn unload(&mut self) {
        self.idle_tuning = None;
        self.model = None;
        self.prefix_files = None;
        *self.shared.tuned_device.lock() = None;
        *self.shared.served.lock() = None;
    }
}
