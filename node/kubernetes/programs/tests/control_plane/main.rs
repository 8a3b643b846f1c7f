//! The control plane's programs with the node's flags: authentication of clients, and decisions without the node's own
//! controllers.

mod admission;
mod aggregation;
mod clients;
mod controllers;
mod database;
mod etcd;
mod first_range;
mod snapshots;
mod stored;

use std::process::ExitCode;

use envtest::Suite;

fn main() -> ExitCode {
    let suite = Suite::new();
    let suite = etcd::cases(suite);
    let suite = clients::cases(suite);
    let suite = aggregation::cases(suite);
    let suite = admission::cases(suite);
    let suite = controllers::cases(suite);
    let suite = first_range::cases(suite);
    let suite = snapshots::cases(suite);
    // These cases restart the API server.
    let suite = stored::cases(suite);
    // These cases are the last, because they replace etcd's data.
    database::cases(suite).run()
}
