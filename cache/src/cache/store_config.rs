//! Stores: resized, replaced.

use super::state::Cache;
use crate::config::{SsdConfig, StoreKind};
use crate::error::CacheError;
use std::sync::Arc;

impl Cache {
    /// Changes the size of a store, in bytes; when it shrinks, what is too much is evicted before this
    /// returns. An SSD store that has failed is opened anew, empty.
    ///
    /// # Errors
    /// When the store cannot have that size, or there is no such store.
    pub fn resize(self: &Arc<Self>, store: StoreKind, bytes: u64) -> Result<(), CacheError> {
        let _resize = (store == StoreKind::Ssd).then(|| self.ssd_resize.lock());
        let shrunk = match store {
            StoreKind::Memory => {
                let mut registry = self.registry.lock();
                self.resize_memory(bytes)?;
                registry.config.memory_bytes = bytes;
                None
            }
            StoreKind::Ssd => self.size_ssd(bytes)?,
        };
        self.refresh(&self.registry.lock());
        if let Some((ssd, beyond)) = shrunk {
            self.empty_beyond(&ssd, beyond);
        }
        Ok(())
    }

    /// Remembers an SSD store that cannot be had, so that statistics say why, and [`resize`](Self::resize) tries it again.
    pub(crate) fn refuse_ssd(&self, ssd: SsdConfig, why: String) {
        let mut registry = self.registry.lock();
        registry.config.ssd = Some(ssd);
        registry.ssd_refused = Some(why);
    }

    /// Replaces the SSD store, or takes it away; its blocks are dropped.
    ///
    /// # Errors
    /// When the new one cannot be used; there is none then, until [`resize`](Self::resize) opens it.
    pub fn set_ssd(self: &Arc<Self>, ssd: Option<SsdConfig>) -> Result<(), CacheError> {
        let _resize = self.ssd_resize.lock();
        let replaced = self.replace_ssd(ssd);
        self.refresh(&self.registry.lock());
        replaced
    }
}
