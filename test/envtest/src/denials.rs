//! Expected rejections of the API server.

use std::fmt::Debug;

use kube::Error;

/// A rejection whose text contains the message, as that of an admission policy.
#[track_caller]
pub fn denied<T: Debug>(result: Result<T, Error>, message: &str) {
    match result {
        Err(Error::Api(status)) if status.message.contains(message) => {}
        other => panic!("expected a denial with {message:?}, got {other:?}"),
    }
}

/// A rejection because of the rights of the user.
#[track_caller]
pub fn forbidden<T: Debug>(result: Result<T, Error>) {
    assert!(matches!(&result, Err(Error::Api(status)) if status.is_forbidden()), "{result:?}");
}
