//! Where requests to reconcile come together. The controller's scheduler folds repeats, so the queue stays short.

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use kube::Resource;
use kube::runtime::reflector::ObjectRef;

/// Sender of requests for one kind.
pub(crate) struct Queue<K: Resource>(UnboundedSender<ObjectRef<K>>);

impl<K: Resource> Queue<K> {
    /// The sender, and the stream the controller reads.
    pub(crate) fn new() -> (Self, UnboundedReceiver<ObjectRef<K>>) {
        let (sender, receiver) = unbounded();
        (Self(sender), receiver)
    }
}

impl<K: Resource<DynamicType = ()>> Queue<K> {
    /// Asks for a pass of one object.
    pub(crate) fn add(&self, namespace: &str, name: &str) {
        // Only a controller that has ended does not listen.
        let _ended = self
            .0
            .unbounded_send(ObjectRef::new(name).within(namespace));
    }
}
