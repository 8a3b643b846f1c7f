//! Recent selections of nodes for claims, and their results. The state is in memory: after a restart, a node that has
//! rejected a claim may be selected once more.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use tokio::time::Instant;
use units::Bytes;

use crate::bound::storage;
use crate::placement::SelectionHistory;

/// Time after which a node that has rejected a claim may have space again.
const REJECTED: Duration = Duration::from_mins(1);

/// Time after which a node that has not created the claim's volume counts as rejecting.
const UNSERVED: Duration = Duration::from_mins(5);

/// Time after which published capacities include a volume.
const SETTLED: Duration = Duration::from_secs(10);

/// Time after which a temporary obstacle is reported in an event.
const TEMPORARY: Duration = Duration::from_mins(1);

/// Time after which an event about a claim is repeated.
const REPORTED: Duration = Duration::from_mins(5);

/// Time until the first check of the pods of a clone whose node was replaced. The scheduler notices the change within a
/// second, and then schedules the pods again.
const FIRST_CHECK: Duration = Duration::from_secs(5);

/// Time without a pass after which a claim counts as bound or deleted.
const FORGOTTEN: Duration = Duration::from_mins(15);

/// Age of the checks of a bound claim at which they end, if they report nothing.
const CHECKED: Duration = Duration::from_mins(60);

#[derive(Debug, Default)]
pub(crate) struct Selections {
    /// Waiting claims by UID.
    claims: HashMap<String, WaitingClaim>,
    recent: VecDeque<Assignment>,
    forgotten: Option<Instant>,
}

#[derive(Debug)]
struct WaitingClaim {
    size: Bytes,
    selected: Option<SelectedNode>,
    rejected: BTreeMap<String, Instant>,
    /// Time of the first selection that found no node, if no node was selected since.
    obstructed: Option<Instant>,
    reported: Option<Instant>,
    /// Time of the last event about another node.
    moved: Option<Instant>,
    /// Time of the last event about a pod that cannot run.
    unsuitable: Option<Instant>,
    checks: Option<PodChecks>,
    seen: Instant,
}

/// Checks of the pods of a clone, since its node was replaced.
#[derive(Debug)]
struct PodChecks {
    /// Node of the source.
    node: String,
    since: Instant,
    next: Instant,
}

/// Result of a check of the pods of a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodCheck {
    /// Every pod has a node. A claim that is not bound may get more pods.
    Scheduled,
    /// A pod waits for a node, or for the volume.
    Waiting,
    /// An event names a pod that cannot run.
    Reported,
}

#[derive(Debug)]
struct SelectedNode {
    node: String,
    /// Resource version of the claim before the selection. `None` if another component selected the node.
    before: Option<String>,
    since: Instant,
}

#[derive(Debug)]
struct Assignment {
    claim: String,
    node: String,
    size: Bytes,
    at: Instant,
}

impl Selections {
    /// Records that the claim has a selected node. Returns how much longer the node may take to create the volume.
    pub(crate) fn assigned(&mut self, claim: &PersistentVolumeClaim, node: &str, now: Instant) -> Duration {
        let selected = &mut self.waiting(claim, now).selected;
        let since = selected.as_ref().filter(|earlier| earlier.node == node).map_or(now, |earlier| earlier.since);
        *selected = Some(SelectedNode { node: node.to_owned(), before: None, since });
        (since + UNSERVED).saturating_duration_since(now)
    }

    /// Results of earlier selections for a claim without a selected node. A node that was selected before has rejected
    /// the claim. `None` if the claim is older than the selection.
    pub(crate) fn history(&mut self, claim: &PersistentVolumeClaim, now: Instant) -> Option<SelectionHistory> {
        let waiting = self.waiting(claim, now);
        if let Some(SelectedNode { before: Some(before), .. }) = &waiting.selected
            && claim.metadata.resource_version.as_ref() == Some(before)
        {
            return None;
        }
        let rejecting = waiting.selected.take();
        let is_rejected = rejecting.is_some();
        waiting.rejected.extend(rejecting.map(|selected| (selected.node, now)));
        waiting.rejected.retain(|_, at| now < *at + REJECTED);
        let rejected = waiting.rejected.keys().cloned().collect();
        if is_rejected {
            self.release(claim);
        }
        while self.recent.front().is_some_and(|first| now >= first.at + SETTLED) {
            self.recent.pop_front();
        }
        let mut assigned = BTreeMap::<String, Bytes>::new();
        for Assignment { node, size, .. } in &self.recent {
            let sum = assigned.entry(node.clone()).or_default();
            *sum = sum.saturating_add(*size);
        }
        Some(SelectionHistory { rejected, assigned })
    }

    /// Records a selection before the node is written to the claim.
    pub(crate) fn select(&mut self, claim: &PersistentVolumeClaim, node: &str, now: Instant) {
        let waiting = self.waiting(claim, now);
        waiting.selected = Some(SelectedNode { node: node.to_owned(), before: claim.resource_version(), since: now });
        waiting.obstructed = None;
        let claim = claim.uid().unwrap_or_default();
        let assignment = Assignment { claim, node: node.to_owned(), size: waiting.size, at: now };
        self.recent.push_back(assignment);
    }

    /// Withdraws a selection whose write has failed.
    pub(crate) fn withdraw(&mut self, claim: &PersistentVolumeClaim, now: Instant) {
        self.waiting(claim, now).selected = None;
        self.release(claim);
    }

    /// Drops what an event of the watch ends. A tenant can create and delete claims without a pause.
    pub(crate) fn observe(&mut self, event: &Event<PersistentVolumeClaim>) {
        let (claim, is_gone) = match event {
            Event::Delete(claim) => (claim, true),
            Event::InitApply(claim) | Event::Apply(claim) if claim.metadata.deletion_timestamp.is_some() => {
                (claim, false)
            }
            Event::Init | Event::InitApply(_) | Event::InitDone | Event::Apply(_) => return,
        };
        // The node creates no volume for the claim. If it has created one, the published capacity may not include it.
        if volume_of(claim).is_empty() {
            self.release(claim);
        }
        if is_gone {
            self.claims.remove(&claim.uid().unwrap_or_default());
        }
    }

    /// Removes the claim from the recent assignments: it uses no space of a node.
    fn release(&mut self, claim: &PersistentVolumeClaim) {
        let uid = claim.uid().unwrap_or_default();
        self.recent.retain(|assignment| assignment.claim != uid);
    }

    /// Whether to publish the event about a claim that no node can get now.
    pub(crate) fn report(&mut self, claim: &PersistentVolumeClaim, is_temporary: bool, now: Instant) -> bool {
        let waiting = self.waiting(claim, now);
        let since = *waiting.obstructed.get_or_insert(now);
        if is_temporary && now < since + TEMPORARY {
            return false;
        }
        is_due(&mut waiting.reported, now)
    }

    /// Whether to publish the event about a claim whose node was replaced now.
    pub(crate) fn report_moved(&mut self, claim: &PersistentVolumeClaim, now: Instant) -> bool {
        is_due(&mut self.waiting(claim, now).moved, now)
    }

    /// Whether to publish the event about a pod of a checked claim that cannot run on its node now.
    pub(crate) fn report_unsuitable(&mut self, claim: &PersistentVolumeClaim, now: Instant) -> bool {
        let waiting = claim.metadata.uid.as_deref().and_then(|uid| self.claims.get_mut(uid));
        waiting.is_some_and(|waiting| is_due(&mut waiting.unsuitable, now))
    }

    /// Records that the node of a clone's source replaced the selected one. The pods of the clone may be unable to run
    /// there, and are checked until the claim is bound and they have a node. Another replacement by the same node does
    /// not start again: users can cause replacements.
    pub(crate) fn check_pods(&mut self, claim: &PersistentVolumeClaim, node: &str, now: Instant) {
        let checks = &mut self.waiting(claim, now).checks;
        if checks.as_ref().is_none_or(|checks| checks.node != node) {
            *checks = Some(PodChecks { node: node.to_owned(), since: now, next: now + FIRST_CHECK });
        }
    }

    /// The time until the next check, and the node of the source. `None` if the pods need no check.
    pub(crate) fn next_check(&mut self, claim: &PersistentVolumeClaim, now: Instant) -> Option<(Duration, String)> {
        let waiting = self.claims.get_mut(claim.metadata.uid.as_deref()?)?;
        let checks = waiting.checks.as_ref()?;
        waiting.seen = now;
        Some((checks.next.saturating_duration_since(now), checks.node.clone()))
    }

    /// Records the result of a check. Returns the time until the next one, which grows while no pod is reported.
    pub(crate) fn checked(
        &mut self,
        claim: &PersistentVolumeClaim,
        result: PodCheck,
        now: Instant,
    ) -> Option<Duration> {
        let checks = &mut self.claims.get_mut(claim.metadata.uid.as_deref()?)?.checks;
        let since = checks.as_ref()?.since;
        let is_settled = !volume_of(claim).is_empty() || claim.metadata.deletion_timestamp.is_some();
        let pause = match result {
            PodCheck::Scheduled if is_settled => {
                *checks = None;
                return None;
            }
            // Users can keep more pods waiting than a check reads.
            PodCheck::Waiting if is_settled && now >= since + CHECKED => {
                *checks = None;
                return None;
            }
            PodCheck::Scheduled | PodCheck::Waiting => {
                now.saturating_duration_since(since).clamp(FIRST_CHECK, REPORTED)
            }
            PodCheck::Reported => REPORTED,
        };
        checks.as_mut()?.next = now + pause;
        Some(pause)
    }

    /// The entry of the claim. A changed request resets the entry.
    fn waiting(&mut self, claim: &PersistentVolumeClaim, now: Instant) -> &mut WaitingClaim {
        if self.forgotten.is_none_or(|at| now >= at + FORGOTTEN) {
            self.claims.retain(|_, waiting| now < waiting.seen + FORGOTTEN);
            self.forgotten = Some(now);
        }
        let size = size_of(claim);
        let new = || WaitingClaim {
            size,
            selected: None,
            rejected: BTreeMap::new(),
            obstructed: None,
            reported: None,
            moved: None,
            unsuitable: None,
            checks: None,
            seen: now,
        };
        let waiting = self.claims.entry(claim.uid().unwrap_or_default()).or_insert_with(new);
        if waiting.size != size {
            *waiting = new();
        }
        waiting.seen = now;
        waiting
    }
}

/// Whether an event is due: it was never published, or long ago.
fn is_due(last: &mut Option<Instant>, now: Instant) -> bool {
    let is_due = last.is_none_or(|at| now >= at + REPORTED);
    if is_due {
        *last = Some(now);
    }
    is_due
}

/// Name of the claim's PV, empty if the claim is not bound.
fn volume_of(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default()
}

pub(crate) fn size_of(claim: &PersistentVolumeClaim) -> Bytes {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    storage(resources.and_then(|resources| resources.requests.as_ref())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn claim(uid: &str, version: &str, size: &str) -> PersistentVolumeClaim {
        let claim = json!({
            "metadata": {"uid": uid, "resourceVersion": version},
            "spec": {"resources": {"requests": {"storage": size}}},
        });
        serde_json::from_value(claim).unwrap()
    }

    fn rejected(selections: &mut Selections, claim: &PersistentVolumeClaim, now: Instant) -> BTreeSet<String> {
        selections.history(claim, now).expect("a current claim").rejected
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_claim_that_lost_its_node_was_rejected_by_it() {
        let (mut selections, now) = (Selections::default(), Instant::now());
        selections.select(&claim("a", "1", "1Gi"), "one", now);
        // The watch still reports an older version.
        assert!(selections.history(&claim("a", "1", "1Gi"), now).is_none());
        assert_eq!(rejected(&mut selections, &claim("a", "3", "1Gi"), now), names(&["one"]));
        assert_eq!(rejected(&mut selections, &claim("b", "3", "1Gi"), now), names(&[]));
        // Another component has selected a node.
        selections.assigned(&claim("a", "4", "1Gi"), "two", now);
        assert_eq!(rejected(&mut selections, &claim("a", "5", "1Gi"), now), names(&["one", "two"]));
    }

    #[test]
    fn a_rejection_is_forgotten_after_a_while_or_with_the_request() {
        let (mut selections, now) = (Selections::default(), Instant::now());
        for uid in ["a", "b"] {
            selections.assigned(&claim(uid, "1", "1Gi"), "one", now);
            assert_eq!(rejected(&mut selections, &claim(uid, "2", "1Gi"), now), names(&["one"]));
        }
        assert_eq!(rejected(&mut selections, &claim("a", "3", "2Gi"), now), names(&[]));
        let before = now + REJECTED - Duration::from_millis(1);
        assert_eq!(rejected(&mut selections, &claim("b", "2", "1Gi"), before), names(&["one"]));
        assert_eq!(rejected(&mut selections, &claim("b", "2", "1Gi"), now + REJECTED), names(&[]));
    }

    #[test]
    fn a_node_may_leave_a_claim_without_a_volume_for_a_while() {
        let (mut selections, now) = (Selections::default(), Instant::now());
        let selected = claim("a", "2", "1Gi");
        selections.select(&claim("a", "1", "1Gi"), "one", now);
        let later = now + Duration::from_mins(4);
        assert_eq!(selections.assigned(&selected, "one", later), Duration::from_mins(1));
        assert_eq!(selections.assigned(&selected, "one", now + UNSERVED), Duration::ZERO);
        assert_eq!(selections.assigned(&selected, "one", now + UNSERVED * 2), Duration::ZERO);
        // The claim gets another node, or a node that was selected before the reclaimer started.
        assert_eq!(selections.assigned(&selected, "two", now + UNSERVED), UNSERVED);
        assert_eq!(selections.assigned(&claim("b", "2", "1Gi"), "one", later), UNSERVED);
        // The same node gets the claim again after rejecting it.
        assert_eq!(rejected(&mut selections, &claim("a", "3", "1Gi"), now + UNSERVED), names(&["two"]));
        assert_eq!(selections.assigned(&claim("a", "4", "1Gi"), "two", now + UNSERVED * 2), UNSERVED);
    }

    #[test]
    fn a_selection_that_was_not_written_is_not_a_rejection() {
        let (mut selections, now) = (Selections::default(), Instant::now());
        selections.select(&claim("a", "1", "1Gi"), "one", now);
        selections.withdraw(&claim("a", "1", "1Gi"), now);
        assert_eq!(rejected(&mut selections, &claim("a", "1", "1Gi"), now), names(&[]));
    }

    #[test]
    fn recent_selections_count_until_they_are_published() {
        let (mut selections, now) = (Selections::default(), Instant::now());
        selections.select(&claim("a", "1", "1Gi"), "one", now);
        selections.select(&claim("b", "1", "2Gi"), "one", now);
        let seen = selections.history(&claim("c", "1", "1Gi"), now).unwrap();
        assert_eq!(seen.assigned, [("one".to_owned(), Bytes::new(3 << 30))].into());
        let seen = selections.history(&claim("c", "1", "1Gi"), now + SETTLED).unwrap();
        assert!(seen.assigned.is_empty());
    }

    #[test]
    fn a_claim_that_a_node_does_not_have_takes_no_space_of_it() {
        let (mut selections, now) = (Selections::default(), Instant::now());
        let (a, b) = (claim("a", "1", "1Gi"), claim("b", "1", "2Gi"));
        let assigned = |selections: &mut Selections| selections.history(&claim("c", "1", "1Gi"), now).unwrap().assigned;
        selections.select(&a, "one", now);
        selections.select(&b, "one", now);
        selections.withdraw(&b, now);
        assert_eq!(assigned(&mut selections), [("one".to_owned(), Bytes::GIB)].into());
        selections.assigned(&claim("a", "2", "1Gi"), "one", now);
        assert_eq!(rejected(&mut selections, &claim("a", "3", "1Gi"), now), names(&["one"]));
        assert_eq!(assigned(&mut selections), BTreeMap::new());
    }

    /// Regression test: a tenant that created and deleted claims kept the space of nodes from others, 10 s for each.
    #[test]
    fn a_claim_that_is_deleted_before_it_is_bound_takes_no_space() {
        let (mut selections, now) = (Selections::default(), Instant::now());
        let [mut deleted, gone, mut bound] = ["a", "b", "c"].map(|uid| claim(uid, "1", "1Gi"));
        for claim in [&deleted, &gone, &bound] {
            selections.select(claim, "one", now);
        }
        let mut assigned = |event: Event<PersistentVolumeClaim>| {
            selections.observe(&event);
            let seen = selections.history(&claim("d", "1", "1Gi"), now).unwrap();
            seen.assigned.get("one").map(|size| size.get() >> 30)
        };
        assert_eq!(assigned(Event::Apply(deleted.clone())), Some(3));
        let deletion = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let deletion: PersistentVolumeClaim = serde_json::from_value(deletion).unwrap();
        deleted.metadata.deletion_timestamp = deletion.metadata.deletion_timestamp;
        assert_eq!(assigned(Event::Apply(deleted)), Some(2));
        assert_eq!(assigned(Event::Delete(gone)), Some(1));
        bound.spec.as_mut().unwrap().volume_name = Some("pvc-c".to_owned());
        assert_eq!(assigned(Event::Delete(bound)), Some(1), "the published capacity may not include its volume");
        assert_eq!(selections.claims.len(), 2, "the entry of the first claim stays until it is gone");
    }

    #[test]
    fn an_event_is_repeated_after_a_while() {
        let (mut selections, now) = (Selections::default(), Instant::now());
        let claim = claim("a", "1", "1Gi");
        assert!(selections.report(&claim, false, now));
        assert!(!selections.report(&claim, false, now));
        assert!(selections.report(&claim, false, now + REPORTED));
    }

    /// Regression test: a claim that no node could get, and that then got the node of its source, had no event about
    /// this node.
    #[test]
    fn events_about_another_node_have_their_own_pauses() {
        let (mut selections, now) = (Selections::default(), Instant::now());
        let claim = claim("a", "1", "1Gi");
        assert!(selections.report_moved(&claim, now));
        assert!(!selections.report_moved(&claim, now));
        assert!(selections.report_moved(&claim, now + REPORTED));
        // The event about another node started no obstacle.
        assert!(!selections.report(&claim, true, now + REPORTED + TEMPORARY));
        assert!(selections.report(&claim, false, now + REPORTED + TEMPORARY));
    }

    #[test]
    fn pods_of_a_clone_are_checked_until_they_have_a_node() {
        let (mut selections, now) = (Selections::default(), Instant::now());
        let mut claim = claim("a", "1", "1Gi");
        let after = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(selections.next_check(&claim, now), None);
        selections.assigned(&claim, "one", now);
        assert_eq!(selections.next_check(&claim, now), None, "the node was not replaced");
        selections.check_pods(&claim, "one", now);
        assert_eq!(selections.next_check(&claim, now), Some((FIRST_CHECK, "one".to_owned())));
        assert_eq!(selections.next_check(&claim, after(5)), Some((Duration::ZERO, "one".to_owned())));
        for (at, pause) in [(5, 5), (10, 10), (20, 20), (400, 300)] {
            let next = selections.checked(&claim, PodCheck::Waiting, after(at));
            assert_eq!(next, Some(Duration::from_secs(pause)), "{at}");
        }
        assert_eq!(selections.checked(&claim, PodCheck::Reported, after(700)), Some(REPORTED));
        assert_eq!(selections.next_check(&claim, after(700)), Some((REPORTED, "one".to_owned())));
        // A pod may be created until the claim is bound.
        assert_eq!(selections.checked(&claim, PodCheck::Scheduled, after(1000)), Some(REPORTED));
        claim.spec.as_mut().unwrap().volume_name = Some("pvc-a".to_owned());
        assert_eq!(selections.checked(&claim, PodCheck::Scheduled, after(1300)), None);
        assert_eq!(selections.next_check(&claim, after(1300)), None);

        selections.check_pods(&claim, "one", now);
        assert_eq!(selections.checked(&claim, PodCheck::Waiting, after(1300)), Some(REPORTED));
        assert_eq!(selections.checked(&claim, PodCheck::Waiting, after(3600)), None, "other pods may wait for ever");
    }

    /// Regression test: a user who selected another node again and again caused a check and an event each time.
    #[test]
    fn another_replacement_starts_no_check_and_no_event() {
        let (mut selections, now) = (Selections::default(), Instant::now());
        let claim = claim("a", "1", "1Gi");
        selections.check_pods(&claim, "one", now);
        assert!(selections.report_unsuitable(&claim, now));
        assert_eq!(selections.checked(&claim, PodCheck::Reported, now), Some(REPORTED));
        let later = now + FIRST_CHECK;
        selections.check_pods(&claim, "one", later);
        assert_eq!(selections.next_check(&claim, later), Some((REPORTED - FIRST_CHECK, "one".to_owned())));
        selections.check_pods(&claim, "two", later);
        assert_eq!(selections.next_check(&claim, later), Some((FIRST_CHECK, "two".to_owned())));
        assert!(!selections.report_unsuitable(&claim, later));
        assert!(selections.report_unsuitable(&claim, now + REPORTED));
    }

    #[test]
    fn a_temporary_obstacle_is_reported_if_it_lasts() {
        let (mut selections, now) = (Selections::default(), Instant::now());
        let claim = claim("a", "1", "1Gi");
        assert!(!selections.report(&claim, true, now));
        assert!(!selections.report(&claim, true, now + TEMPORARY - Duration::from_millis(1)));
        assert!(selections.report(&claim, true, now + TEMPORARY));
        // A selected node ends the obstacle.
        selections.select(&claim, "one", now + TEMPORARY);
        assert!(!selections.report(&claim, true, now + TEMPORARY + REPORTED));
    }

    #[test]
    fn claims_that_are_gone_are_forgotten() {
        let (mut selections, now) = (Selections::default(), Instant::now());
        selections.assigned(&claim("a", "1", "1Gi"), "one", now);
        selections.assigned(&claim("b", "1", "1Gi"), "one", now + FORGOTTEN);
        assert_eq!(selections.claims.len(), 1);
    }
}
