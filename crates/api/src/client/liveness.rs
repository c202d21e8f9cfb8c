//! Waits for a daemon as long as it lives. An answer may take as long as its work, but a daemon that
//! accepts connections and answers nothing, `GET /health` included, is reported.

use std::time::Duration;

use hyper::Method;
use tokio::time::{sleep, timeout};

use super::{Client, Error};
use crate::route;

/// Silence after which the daemon must answer another request.
const SILENCE: Duration = Duration::from_secs(10);

/// Time in which a living daemon answers that request: its health waits for nothing.
const PATIENCE: Duration = Duration::from_secs(10);

impl Client {
    /// Waits for something from the daemon.
    ///
    /// # Errors
    /// [`Error::Silent`] if the daemon answers no other request either.
    pub(super) async fn while_alive<T>(
        &self,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut answer = std::pin::pin!(answer);
        loop {
            tokio::select! {
                answer = &mut answer => return answer,
                () = sleep(SILENCE) => {}
            }
            let health = timeout(PATIENCE, self.request(Method::GET, route::HEALTH, None));
            tokio::select! {
                answer = &mut answer => return answer,
                health = health => match health {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => return Err(error),
                    Err(_) => {
                        let (daemon, after) = (self.daemon.clone(), SILENCE + PATIENCE);
                        return Err(Error::Silent { daemon, seconds: after.as_secs() });
                    }
                },
            }
        }
    }
}
