//! Messages with missing or invalid fields.

use std::fmt::Debug;

use tonic::Code;

/// Sends one after the other: each is refused with `InvalidArgument`.
pub async fn all_invalid<M: Clone + Debug, T>(
    messages: impl IntoIterator<Item = M>,
    call: impl AsyncFn(M) -> Result<T, Code>,
) {
    for message in messages {
        let refused = call(message.clone()).await.err();
        assert_eq!(refused, Some(Code::InvalidArgument), "{message:?}");
    }
}
