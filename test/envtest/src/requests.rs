//! Requests with objects and patches as JSON, and waits for their effects.

use std::fmt::Debug;

use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Error};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{Failure, PATIENCE, Seen, eventually, reached, until};

pub async fn create<K>(objects: &Api<K>, object: Value) -> Result<K, Error>
where
    K: Clone + DeserializeOwned + Debug + Serialize,
{
    let object: K = serde_json::from_value(object).map_err(Error::SerdeError)?;
    objects.create(&PostParams::default(), &object).await
}

pub async fn merge<K>(objects: &Api<K>, name: &str, patch: Value) -> Result<K, Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    objects.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
}

pub async fn merge_status<K>(objects: &Api<K>, name: &str, patch: Value) -> Result<K, Error>
where
    K: DeserializeOwned,
{
    objects.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await
}

pub async fn gone<K>(objects: &Api<K>, name: &str) -> Result<(), Failure>
where
    K: Clone + DeserializeOwned + Debug,
{
    let what = format!("the end of {name}");
    until(&what, async || Ok(objects.get_opt(name).await?.map(|found| format!("{found:?}")))).await
}

/// Waits until the claim is bound. Returns the name of its PV.
pub async fn bound<K>(claims: &Api<K>, name: &str) -> Result<String, Failure>
where
    K: Clone + DeserializeOwned + Debug + Serialize,
{
    let read = async || claims.get(name).await.map(|claim| json!(claim));
    let is_bound = |claim: &Value| claim["status"]["phase"] == "Bound";
    let claim = reached(&format!("the phase Bound of claim {name}"), read, is_bound).await?;
    Ok(claim["spec"]["volumeName"].as_str().unwrap_or_default().to_owned())
}

/// Repeats a request until the API server accepts it. The API server applies a new role after a delay.
pub async fn accepted<T>(what: &str, request: impl AsyncFn() -> Result<T, Error>) -> Result<T, Failure> {
    Ok(eventually(PATIENCE, what, async || request().await.map(Seen::Done)).await?)
}

pub async fn remove<K>(objects: &Api<K>, name: &str) -> Result<(), Failure>
where
    K: Clone + DeserializeOwned + Debug,
{
    objects.delete(name, &DeleteParams::default()).await?;
    Ok(())
}
