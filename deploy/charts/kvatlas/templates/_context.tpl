{{- /* Value of a flag in a map of flags, given as name or as name=value; otherwise the default. */ -}}
{{- define "kvatlas.flag" -}}
{{- $name := index . 1 -}}{{- $value := toString (index . 2) -}}
{{- range $flag, $given := index . 0 -}}
{{- if eq $flag $name }}{{ $value = toString $given }}{{ else if hasPrefix (printf "%s=" $name) $flag }}{{ $value = trimPrefix (printf "%s=" $name) $flag }}{{ end -}}
{{- end -}}
{{- $value -}}
{{- end -}}
{{- /* Port of a listener: of a flag for the port, or of an address in a flag or in the file, or otherwise the default. */ -}}
{{- define "kvatlas.port" -}}
{{- $address := include "kvatlas.flag" (list .flags .addressFlag (dig "server" .key "" .config)) -}}
{{- include "kvatlas.flag" (list .flags .portFlag (regexFind "[0-9]+$" $address)) | default .default -}}
{{- end -}}
{{- /* A duration such as 2.5s or 1m30s, given after its name, in whole seconds, rounded up. */ -}}
{{- define "kvatlas.seconds" -}}
{{- $text := toString (index . 1) -}}
{{- if not (regexMatch `^(0|([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+)$` $text) }}{{ fail (printf "%s is %q, want a duration such as 30s or 2m" (index . 0) $text) }}{{ end -}}
{{- $start := toDate "2006-01-02" "2000-01-01" -}}
{{- $shown := mustDateModify (printf "+%s" $text) $start | unixEpoch | int64 -}}
{{- sub $shown (unixEpoch $start | int64) | add1 -}}
{{- end -}}
{{- /* What counts, as YAML: the router charts' names, over them the inferencepool chart's, and what follows from both. */ -}}
{{- define "kvatlas.context" -}}
{{- $values := .Values -}}
{{- $epp := mergeOverwrite (deepCopy $values.router.epp) $values.inferenceExtension -}}
{{- $servers := mergeOverwrite (deepCopy $values.router.modelServers) (dig "modelServers" dict $values.inferencePool) (pick $values.inferencePool "targetPorts") -}}
{{- $pool := mergeOverwrite (deepCopy $values.router.inferencePool) (pick $values.inferenceExtension "failureMode") -}}
{{- $standalone := dig "endpointsServer" dict $values.inferenceExtension -}}
{{- if hasKey $standalone "createInferencePool" }}{{ $pool = set $pool "create" $standalone.createInferencePool }}{{ end -}}
{{- $matchLabels := dict -}}
{{- range $label, $value := $servers.matchLabels }}{{ $matchLabels = set $matchLabels $label (toString $value) }}{{ end -}}
{{- $selectors := list -}}
{{- range $label, $value := $matchLabels }}{{ $selectors = append $selectors (printf "%s=%s" $label $value) }}{{ end -}}
{{- $selector := dig "endpointSelector" (join "," $selectors) $standalone -}}
{{- $ports := list -}}
{{- range $servers.targetPorts }}{{ $ports = append $ports (int .number) }}{{ end -}}
{{- with dig "targetPorts" "" $standalone }}{{ $ports = splitList "," (toString .) }}{{ end -}}
{{- $proxy := $values.router.proxy -}}
{{- if dig "sidecar" "enabled" false $values.inferenceExtension }}{{ $proxy = set (deepCopy $proxy) "enabled" true }}{{ end -}}
{{- $routes := not $pool.existing -}}
{{- $secure := include "kvatlas.flag" (list $epp.flags "secure-serving" (and $routes (not $proxy.enabled))) -}}
{{- $secure = toString (has (lower $secure) (list "true" "t" "1")) -}}
{{- $listeners := dict "flags" $epp.flags "config" $values.config -}}
{{- $grpcPort := include "kvatlas.port" (merge (dict "key" "extProc" "addressFlag" "ext-proc" "portFlag" "grpc-port" "default" 9002) $listeners) | int -}}
{{- $metricsPort := include "kvatlas.port" (merge (dict "key" "metrics" "addressFlag" "metrics" "portFlag" "metrics-port" "default" 9090) $listeners) | int -}}
{{- $restPort := include "kvatlas.port" (merge (dict "key" "rest" "addressFlag" "rest" "portFlag" "" "default" 8080) $listeners) | int -}}
{{- $healthPort := include "kvatlas.flag" (list $epp.flags "grpc-health-port" (int $epp.grpcHealthPort)) | int -}}
{{- $perWorker := list -}}
{{- range $worker := until (dig "server" "workers" 1 $values.config | int) -}}
{{- $suffix := ternary (printf "-%d" $worker) "" (gt $worker 0) -}}
{{- $perWorker = append $perWorker (dict "metrics" (printf "metrics%s" $suffix) "metricsPort" (add $metricsPort $worker) "rest" (printf "rest%s" $suffix) "restPort" (add $restPort $worker)) -}}
{{- if and $proxy.enabled (has (int $proxy.port) (list (add $metricsPort $worker | int) (add $restPort $worker | int))) }}{{ fail (printf "router.proxy.port is %d, on which worker %d has its metrics or REST: choose another, or move config.server.rest" (int $proxy.port) $worker) }}{{ end -}}
{{- end -}}
{{- $namespace := include "kvatlas.flag" (list $epp.flags "pool-namespace" .Release.Namespace) -}}
{{- $followed := include "kvatlas.flag" (list $epp.flags "pool-name" (ternary (ternary .Release.Name "" $pool.create) $pool.existing $routes)) -}}
{{- $group := include "kvatlas.flag" (list $epp.flags "pool-group" (dig "endpoints" "kubernetes" "poolGroup" "inference.networking.k8s.io" $values.config)) -}}
{{- $transport := dig "replicas" "transport" "none" $values.config -}}
{{- $elects := eq "true" (include "kvatlas.flag" (list $epp.flags "ha-enable-leader-election" (and $routes (gt (int $epp.replicas) 1) $epp.leaderElection (eq $transport "none")))) -}}
{{- $lease := dig "leaderElection" "leaseName" "" $values.config | default (trimSuffix "-" (printf "kvatlas-%s" $followed)) -}}
{{- $name := printf "%s-epp" (.Release.Name | trunc 40 | trimSuffix "-") -}}
{{- $tokenFile := "/var/run/secrets/kvatlas/token" -}}
{{- $hasToken := and (not (hasKey (dig "server" "auth" dict $values.config) "bearerTokenFile")) (or $values.restToken.existingSecret $values.restToken.create) -}}
{{- $config := deepCopy $values.config -}}
{{- $tokenSecret := "" -}}
{{- if $hasToken -}}
{{- $tokenSecret = $values.restToken.existingSecret | default (printf "%s-token" $name) -}}
{{- $config = mergeOverwrite (dict "server" (dict "auth" (dict "bearerTokenFile" $tokenFile))) $config -}}
{{- end -}}
{{- $tls := dig "server" "tls" dict $config -}}
{{- $hasCertificate := and (eq $secure "true") (dig "certFile" "" $tls) (dig "http" true $tls) (not (include "kvatlas.flag" (list $epp.flags "cert-path" ""))) -}}
{{- $metricsTls := or $hasCertificate (include "kvatlas.flag" (list $epp.flags "metrics-cert-dir" (dig "server" "metricsTls" "certFile" "" $config))) -}}
{{- $shared := dict "file" "/var/run/secrets/kvatlas-replicas/secret" "secret" "" "key" "" -}}
{{- if eq $transport "mesh" -}}
{{- $listen := dig "replicas" "mesh" "listen" "tcp://0.0.0.0:5570" $config -}}
{{- $shared = mergeOverwrite $shared (dict "port" (regexFind "[0-9]+$" $listen | int)) -}}
{{- $made := dict -}}
{{- if not (dig "replicas" "mesh" "discover" dict $config) }}{{ $made = dict "discover" (dict "dns" (printf "%s-replicas.%s:%d" $name .Release.Namespace $shared.port)) }}{{ end -}}
{{- if and (or $values.replicaSecret.create $values.replicaSecret.existingSecret) (not (dig "replicas" "mesh" "secretFile" "" $config)) -}}
{{- $shared = mergeOverwrite $shared (dict "key" "secret" "secret" ($values.replicaSecret.existingSecret | default (printf "%s-replicas" $name))) -}}
{{- $made = set $made "secretFile" $shared.file -}}
{{- end -}}
{{- $config = mergeOverwrite $config (dict "replicas" (dict "mesh" $made)) -}}
{{- else if and (eq $transport "valkey") $values.replicaSecret.existingSecret (not (dig "replicas" "valkey" "passwordFile" "" $config)) -}}
{{- $shared = mergeOverwrite $shared (dict "key" "password" "secret" $values.replicaSecret.existingSecret) -}}
{{- $config = mergeOverwrite $config (dict "replicas" (dict "valkey" (dict "passwordFile" $shared.file))) -}}
{{- end -}}
{{- $adminPort := 19000 -}}
{{- if $proxy.enabled }}{{ $config = mergeOverwrite $config (dict "server" (dict "proxyAdmin" (printf "127.0.0.1:%d" $adminPort))) }}{{ end -}}
{{- $notice := include "kvatlas.seconds" (list "config.server.drainNotice" (dig "server" "drainNotice" "2.5s" $config)) | int -}}
{{- $drain := include "kvatlas.seconds" (list "config.server.drainTimeout (or flags.drain-timeout)" (include "kvatlas.flag" (list $epp.flags "drain-timeout" (dig "server" "drainTimeout" "30s" $config)))) | int -}}
{{- $graceSeconds := max 130 (add (mul 2 $notice) (mul 2 $drain) 10) -}}
{{- $hosts := append (dig "rest" "allowedHosts" list $config) (printf "%s.%s" $name .Release.Namespace) -}}
{{- $config = mergeOverwrite $config (dict "rest" (dict "allowedHosts" $hosts)) -}}
{{- $labels := dict "app.kubernetes.io/name" "kvatlas" "app.kubernetes.io/instance" .Release.Name -}}
{{- if and $routes (not $selector) }}{{ fail "router.modelServers.matchLabels (or inferencePool.modelServers.matchLabels) is empty: it chooses the model servers" }}{{ end -}}
{{- if and $pool.create $routes (not $matchLabels) }}{{ fail "router.modelServers.matchLabels is empty, and an InferencePool is made from it alone" }}{{ end -}}
{{- if and $pool.create $routes (ne $group "inference.networking.k8s.io") }}{{ fail (printf "pool-group is %s, and the chart makes pools of inference.networking.k8s.io alone: name your pool in router.inferencePool.existing" $group) }}{{ end -}}
{{- if and $pool.create $routes (ne $namespace .Release.Namespace) }}{{ fail (printf "pool-namespace is %s, and the chart makes the pool in %s: name your pool in router.inferencePool.existing, or set router.inferencePool.create to false" $namespace .Release.Namespace) }}{{ end -}}
{{- $route := mergeOverwrite (deepCopy $values.httpRoute) $values.experimentalHttpRoute -}}
{{- if and (or $route.create (dig "enabled" false $route)) (not (and $pool.create $routes)) }}{{ fail "httpRoute.create (or experimentalHttpRoute.enabled) is true, and a route needs the InferencePool that router.inferencePool.create makes: set that to true and router.inferencePool.existing to \"\", or make the route yourself" }}{{ end -}}
{{- $severalWorkers := gt (dig "server" "workers" 1 $values.config | int) 1 -}}
{{- if and $severalWorkers (eq $transport "mesh") }}{{ fail "config.server.workers is above 1 with config.replicas.transport mesh, whose port takes one process: set router.epp.replicas instead, or use valkey" }}{{ end -}}
{{- if and $severalWorkers $elects }}{{ fail "config.server.workers is above 1 with an elected leader, of whose workers only one would be ready: set router.epp.leaderElection to false, or workers to 1" }}{{ end -}}
{{- if not (has $values.provider.name (list "gke" "istio" "kgateway" "agentgateway" "envoy-ai-gateway" "nginx" "none")) }}{{ fail (printf "provider.name is %q, want gke, istio, kgateway, agentgateway, envoy-ai-gateway, nginx or none" $values.provider.name) }}{{ end -}}
{{- if not (has $pool.failureMode (list "FailOpen" "FailClose")) }}{{ fail (printf "failureMode is %q, want FailOpen or FailClose" $pool.failureMode) }}{{ end -}}
{{- if ne (dig "modelServerProtocol" $servers.protocol $values.inferencePool) "http" }}{{ fail "router.modelServers.protocol (or inferencePool.modelServerProtocol) is not http: prompts are read from HTTP requests alone" }}{{ end -}}
{{- if and $proxy.enabled (or (ne $proxy.proxyType "envoy") (ne $proxy.mode "sidecar")) }}{{ fail (printf "router.proxy is %s as %s, want envoy as sidecar" $proxy.proxyType $proxy.mode) }}{{ end -}}
{{- if and $proxy.enabled (semverCompare "<1.29.0-0" .Capabilities.KubeVersion.Version) }}{{ fail (printf "router.proxy.enabled is true, and its Envoy is a native sidecar, which Kubernetes has since 1.29; this cluster is %s: use a gateway instead" .Capabilities.KubeVersion.Version) }}{{ end -}}
{{- if and $proxy.enabled (eq $secure "true") }}{{ fail "secure-serving is true with router.proxy, whose Envoy asks the picker within the pod in plain text" }}{{ end -}}
{{- if and $elects (gt (len $perWorker) 1) }}{{ fail (printf "server.workers is %d, and a leader is elected among %d replicas, of whose workers only one would be ready: set config.replicas.transport valkey, or leaderElection false" (len $perWorker) (int $epp.replicas)) }}{{ end -}}
{{- $builtIn := has $epp.pluginsConfigFile (list "" "default-plugins.yaml" "payload-agnostic.yaml") -}}
{{- if and (not $builtIn) (not (hasKey $epp.pluginsCustomConfig $epp.pluginsConfigFile)) }}{{ fail (printf "pluginsConfigFile %q is not in pluginsCustomConfig" $epp.pluginsConfigFile) }}{{ end -}}
{{- dict
  "name" $name
  "meta" (dict "name" $name "namespace" .Release.Namespace "labels" $labels)
  "poolMeta" (dict "name" .Release.Name "namespace" .Release.Namespace "labels" $labels)
  "labels" $labels
  "epp" $epp
  "config" $config
  "tokenSecret" $tokenSecret
  "tokenFile" $tokenFile
  "transport" $transport
  "shared" $shared
  "builtIn" $builtIn
  "matchLabels" $matchLabels
  "selector" $selector
  "ports" $ports
  "pool" $pool
  "makesPool" (and $pool.create $routes)
  "followed" $followed
  "watched" $namespace
  "group" $group
  "proxy" $proxy
  "adminPort" $adminPort
  "graceSeconds" $graceSeconds
  "secure" $secure
  "grpcPort" $grpcPort
  "healthPort" $healthPort
  "workers" $perWorker
  "metricsTls" (not (not $metricsTls))
  "elects" $elects
  "lease" $lease
  "monitoring" (mergeOverwrite (deepCopy $values.router.monitoring) (dig "monitoring" dict $values.inferenceExtension))
  "route" $route
  "extraPorts" (dig "extraServicePorts" $values.router.extraServicePorts $values.inferenceExtension)
  "objectives" (concat $values.router.inferenceObjectives $values.inferenceObjectives)
  "provider" $values.provider
| toYaml }}
{{- end -}}
