//! Memory of requests as JSON trees: what all of them may take together.
//!
//! A tree takes up to 85 bytes for each byte of its text, because an empty list is 2 bytes of text
//! and a value. Reserves memory by the number of values, before the tree is made, until the request
//! has become a prompt.

use std::cell::RefCell;
use std::future::Future;
use std::sync::Arc;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::Error;

/// Memory of a value in a tree, and of what is made of it, in bytes.
const VALUE: usize = 80;

/// Memory of trees that needs no reservation, in bytes.
const SMALL: usize = 1 << 20;

/// Largest tree, in bytes.
const LARGEST: usize = 160 << 20;

/// Memory of all trees, in bytes.
const ALL: usize = 256 << 20;

/// Unit of reservations, in bytes.
const UNIT: usize = 1 << 10;

/// Most values that a text can have as JSON. It may be in a text of JSON, as the arguments of tools are.
fn values(json: &[u8]) -> usize {
    json.iter().filter(|byte| matches!(byte, b'[' | b'{' | b',' | b':')).count()
}

/// Approximate size of the tree of a text, in bytes.
pub(super) fn tree(json: &str) -> usize {
    json.len() + values(json.as_bytes()) * VALUE
}

tokio::task_local! {
    static RESERVED: RefCell<Vec<OwnedSemaphorePermit>>;
}

/// Memory that is left for trees.
pub(super) struct JsonMemory(Arc<Semaphore>);

impl Default for JsonMemory {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ALL / UNIT)))
    }
}

impl JsonMemory {
    /// Waits until there is memory for the tree of this text, and reserves it until the request's
    /// answer begins.
    ///
    /// # Errors
    /// The tree is too large.
    pub(super) async fn reserve(&self, json: &[u8]) -> Result<(), Error> {
        let values = values(json);
        let bytes = values * VALUE;
        if bytes <= SMALL {
            return Ok(());
        }
        if bytes > LARGEST {
            let most = LARGEST / VALUE;
            let message = format!("the body has about {values} JSON values, the limit is {most}");
            return Err(Error::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
                .hint("send shorter lists, or tensors and embeddings' texts as base64"));
        }
        let permits = (bytes / UNIT) as u32;
        let reserved = Arc::clone(&self.0).acquire_many_owned(permits).await;
        let reserved = reserved.map_err(|_| Error::internal("the memory of JSON was closed"))?;
        // Outside of a request, as in tests, it ends at once.
        _ = RESERVED.try_with(|all| all.borrow_mut().push(reserved));
        Ok(())
    }
}

/// Runs a request. Its reservations end with it.
pub(super) async fn scope<T>(request: impl Future<Output = T>) -> T {
    RESERVED.scope(RefCell::default(), request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn trees_wait_for_memory_and_have_a_largest_size() {
        let memory = JsonMemory::default();
        let json = |values: usize| "[],".repeat(values / 2).into_bytes();
        assert!(memory.reserve(&json(2 * LARGEST / VALUE)).await.is_err());
        let large = json(LARGEST / VALUE);
        let left = || memory.0.available_permits() * UNIT;
        let first = scope(async {
            memory.reserve(&large).await.ok().unwrap();
            assert!(left() < ALL - LARGEST / 2);
            let second = scope(memory.reserve(&large));
            let late = std::time::Duration::from_millis(20);
            assert!(tokio::time::timeout(late, second).await.is_err(), "there is no room");
            assert!(scope(memory.reserve(b"[1, 2]")).await.is_ok());
        });
        first.await;
        assert_eq!(left(), ALL);
        assert!(scope(memory.reserve(&large)).await.is_ok());
    }
}
