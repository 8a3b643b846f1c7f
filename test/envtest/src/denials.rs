//! Expected rejections of the API server.

use std::fmt::Debug;

use kube::Error;

/// Requires a rejection whose text contains the message, such as that of an admission policy.
#[track_caller]
pub fn denied<T: Debug>(result: Result<T, Error>, message: &str) {
    match result {
        Err(Error::Api(status)) if status.message.contains(message) => {}
        other => panic!("expected a denial with {message:?}, got {other:?}"),
    }
}

/// Requires a rejection because the user lacks a permission.
#[track_caller]
pub fn forbidden<T: Debug>(result: Result<T, Error>) {
    assert!(matches!(&result, Err(Error::Api(status)) if status.is_forbidden()), "{result:?}");
}
