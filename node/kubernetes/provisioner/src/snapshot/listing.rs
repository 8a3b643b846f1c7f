//! The list of the contents, which decides whether snapshots can be removed.

use std::collections::BTreeMap;

use kube::Api;
use volume::VolumeId;

use crate::error::{ApiError, api};
use crate::listing::list_each;
use crate::snapshot::object::Content;

/// Contents that this node serves or will serve, by their snapshots.
#[derive(Debug, Default)]
pub(crate) struct ContentListing(BTreeMap<VolumeId, Vec<Content>>);

impl ContentListing {
    pub(crate) async fn read(contents: &Api<Content>, node: &str) -> Result<Self, ApiError> {
        let mut listing = Self::default();
        list_each(contents, |content| listing.add(content, node)).await.map_err(api("list the contents"))?;
        Ok(listing)
    }

    fn add(&mut self, mut content: Content, node: &str) {
        let Some(id) = content.id().filter(|id| content.may_show(id, node)) else { return };
        // The list stays in memory until the next one.
        content.metadata.managed_fields = None;
        content.status = None;
        self.0.entry(id).or_default().push(content);
    }

    pub(crate) fn of(&self, id: &VolumeId) -> &[Content] {
        self.0.get(id).map_or(&[], Vec::as_slice)
    }
}
