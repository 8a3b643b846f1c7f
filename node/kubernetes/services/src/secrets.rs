//! Secrets in etcd: the key that encrypts them, and how Secrets that are stored in another form get the present one.
//!
//! The API server writes with its first provider and reads with all. A data disk of a release that did not encrypt has
//! Secrets in plain text: they stay readable, and [`rewrite`] has each written again.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use supervisor::Context;
use tracing::info;

use crate::SecretStorage;

/// Bytes of a key of the provider `secretbox` (XSalsa20 and Poly1305).
pub(crate) const KEY: usize = 32;

/// The name under which etcd has the key; another key needs another one.
const KEY_NAME: &str = "key1";

/// Secrets that are listed with one request.
const PAGE: u32 = 500;

/// Some Secret is not stored as it should be.
#[derive(Debug, thiserror::Error)]
pub enum RewriteError {
    /// Which Secrets there are.
    #[error(
        "cannot list the cluster's Secrets; if the API server cannot decrypt them, bring pki/secrets.key back from a copy of \
         the data disk"
    )]
    List(#[source] Box<kube::Error>),
    /// One of them.
    #[error("cannot write Secret {namespace}/{name} again")]
    Write {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
}

/// What [`rewrite_all`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rewritten {
    /// Secrets that there are.
    pub secrets: usize,
    /// Those that were stored in another form than the present one.
    pub changed: usize,
}

/// The EncryptionConfiguration: with the present form first.
pub(crate) fn configuration(storage: SecretStorage, key: &[u8; KEY]) -> String {
    let secret = ByteString(key.to_vec());
    let encrypted = json!({"secretbox": {"keys": [{"name": KEY_NAME, "secret": secret}]}});
    let plain = json!({"identity": {}});
    let providers = match storage {
        SecretStorage::Encrypted => [encrypted, plain],
        SecretStorage::Plain => [plain, encrypted],
    };
    json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "EncryptionConfiguration",
        "resources": [{"resources": ["secrets"], "providers": providers}],
    })
    .to_string()
}

/// Has all Secrets stored in the present form, once for each start. A service: done when they are.
///
/// # Errors
/// [`RewriteError`]: to be started again after a while. What was written stays written.
pub async fn rewrite(cx: Context, client: Client) -> Result<(), RewriteError> {
    let rewritten = tokio::select! {
        () = cx.cancelled() => return Ok(()),
        rewritten = rewrite_all(&client) => rewritten?,
    };
    let Rewritten { secrets, changed } = rewritten;
    info!(secrets, changed, "all Secrets are stored as configured");
    cx.done();
    Ok(())
}

/// One pass. A patch without a change has the API server write an object only if it is stored in another form.
///
/// # Errors
/// [`RewriteError`].
pub async fn rewrite_all(client: &Client) -> Result<Rewritten, RewriteError> {
    let all = Api::<Secret>::all(client.clone());
    let mut rewritten = Rewritten::default();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let listed = all.list_metadata(&page).await.map_err(|error| RewriteError::List(Box::new(error)))?;
        for secret in &listed.items {
            let (namespace, name) = (secret.namespace().unwrap_or_default(), secret.name_any());
            let secrets = Api::<Secret>::namespaced(client.clone(), &namespace);
            match secrets.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(json!({}))).await {
                Ok(written) => {
                    rewritten.secrets += 1;
                    rewritten.changed += usize::from(written.resource_version() != secret.resource_version());
                }
                // Deleted since it was listed.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(source) => return Err(RewriteError::Write { namespace, name, source: Box::new(source) }),
            }
        }
        match listed.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(rewritten),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// A release that cannot read one of the forms would lose Secrets.
    #[test]
    fn both_forms_are_readable_and_the_configured_one_is_written() {
        for (storage, first, second) in
            [(SecretStorage::Encrypted, "secretbox", "identity"), (SecretStorage::Plain, "identity", "secretbox")]
        {
            let read: Value = serde_json::from_str(&configuration(storage, &[7; KEY])).unwrap();
            let providers = read["resources"][0]["providers"].as_array().unwrap();
            assert!(providers.len() == 2 && providers[0].get(first).is_some() && providers[1].get(second).is_some());
        }
    }
}
