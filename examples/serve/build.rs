//! Writes the gRPC service of `src/grpc/messages.rs`. The messages are Rust types, so this needs no protocol compiler.

use tonic_build::manual::{Builder, Method, Service};

/// The methods of the service: the name in Rust, and the name on the wire, which begins its messages' names too.
const METHODS: [(&str, &str); 6] = [
    ("server_live", "ServerLive"),
    ("server_ready", "ServerReady"),
    ("model_ready", "ModelReady"),
    ("server_metadata", "ServerMetadata"),
    ("model_metadata", "ModelMetadata"),
    ("model_infer", "ModelInfer"),
];

fn main() {
    let service = Service::builder().name("GRPCInferenceService").package("inference");
    let service = METHODS.into_iter().fold(service, |service, (name, route)| {
        let method = Method::builder().name(name).route_name(route).codec_path("tonic_prost::ProstCodec");
        let method = method
            .input_type(format!("crate::grpc::messages::{route}Request"))
            .output_type(format!("crate::grpc::messages::{route}Response"));
        service.method(method.build())
    });
    Builder::new().build_client(false).compile(&[service.build()]);
    println!("cargo::rerun-if-changed=build.rs");
}
