{{- /* Envoy in the pod: every request goes through kvatlas to the server that it names. */ -}}
{{- define "kvatlas.envoy" -}}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: {{ int .adminPort }}}}}
static_resources:
  listeners:
  - name: gateway
    address: {socket_address: {address: 0.0.0.0, port_value: {{ .port }}}}
    per_connection_buffer_limit_bytes: 33554432
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: gateway
          stream_idle_timeout: 300s
          route_config:
            name: model_servers
            virtual_hosts:
            - name: model_servers
              domains: ["*"]
              routes:
              - {match: {prefix: "/"}, route: {cluster: model_servers, timeout: 0s}}
          http_filters:
          # Clients must not choose the server, nor the hosts that sidecars of engines fetch from.
          - name: strip_destination
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation
              mutations:
                request_mutations:
                - remove: x-gateway-destination-endpoint
                - remove: x-prefiller-host-port
                - remove: x-prefiller-url
                - remove: x-encoder-hosts-ports
                - remove: x-data-parallel-host-port
                - remove: x-kv-cache-source-host-port
          - name: envoy.filters.http.ext_proc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: {envoy_grpc: {cluster_name: kvatlas}}
              # Without the picker no server is known. Clients try again after 503, and after no 500.
              failure_mode_allow: false
              status_on_error: {code: ServiceUnavailable}
              processing_mode:
                request_header_mode: SEND
                request_body_mode: FULL_DUPLEX_STREAMED
                request_trailer_mode: SEND
                response_header_mode: SEND
                response_body_mode: FULL_DUPLEX_STREAMED
                response_trailer_mode: SEND
              response_attributes: [upstream.address]
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
              suppress_envoy_headers: true
  clusters:
  - name: model_servers
    type: ORIGINAL_DST
    lb_policy: CLUSTER_PROVIDED
    connect_timeout: 1s
    original_dst_lb_config: {use_http_header: true, http_header_name: x-gateway-destination-endpoint}
    circuit_breakers:
      thresholds: [{max_connections: 40000, max_pending_requests: 40000, max_requests: 40000}]
  - name: kvatlas
    type: STATIC
    connect_timeout: 0.25s
    circuit_breakers:
      thresholds: [{max_connections: 40000, max_pending_requests: 40000, max_requests: 40000}]
    common_lb_config: {healthy_panic_threshold: {value: 0}}
    health_checks:
    - timeout: 0.5s
      interval: 1s
      no_traffic_interval: 1s
      unhealthy_threshold: 1
      healthy_threshold: 1
      # not its readiness, which ends before it does: until then it takes the requests that still come here
      grpc_health_check: {service_name: liveness}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: kvatlas
      endpoints:
      - lb_endpoints:
        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: {{ .grpcPort }}}}}
{{- end -}}
