//! The jobs that run while the phases go on.

use anyhow::Result;

use super::job::Job;
use super::setup::Tenant;

/// The jobs in the background.
#[derive(Default)]
pub(super) struct Background(Vec<Job>);

impl Background {
    /// These run there, too.
    pub(super) fn add(&mut self, jobs: Vec<Job>) {
        self.0.extend(jobs);
    }

    /// The tenants that a job runs in, once for each job.
    pub(super) fn tenants(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(Job::tenant)
    }

    /// Whether a job runs in this tenant.
    pub(super) fn runs_in(&self, tenant: &str) -> bool {
        self.tenants().any(|name| name == tenant)
    }

    /// Operations that the jobs in a tenant have reported so far.
    pub(super) fn operations(&self, tenant: &str) -> Result<u64> {
        let jobs = self.0.iter().filter(|job| job.tenant() == tenant);
        jobs.map(Job::operations).sum()
    }

    /// Ends all that runs in a tenant, and makes its cgroup anew.
    pub(super) fn renew(&mut self, tenant: &Tenant) -> Result<()> {
        self.0.retain(|job| job.tenant() != tenant.name);
        tenant.renew()
    }

    /// An error if one has failed.
    pub(super) fn check(&mut self) -> Result<()> {
        self.0.iter_mut().try_for_each(Job::check)
    }

    /// Ends all that runs in these tenants.
    pub(super) fn stop(&mut self, names: &[String], tenants: &[Tenant]) -> Result<()> {
        self.0
            .retain(|job| !names.iter().any(|name| name == job.tenant()));
        for tenant in tenants.iter().filter(|tenant| names.contains(&tenant.name)) {
            tenant.cgroup.kill()?;
            tenant.cgroup.inhabit()?;
        }
        Ok(())
    }
}
