{{- /*
The container. Its context: root: the chart's context, args: the flags of its listeners, ports: its ports,
probes: its probes, extra: further fields, as text.
*/ -}}
{{- define "rlsidecar.container" -}}
{{- $v := .root.Values -}}
name: rlsidecar
image: {{ include "rlsidecar.image" .root | quote }}
imagePullPolicy: {{ $v.image.pullPolicy }}
{{- with .extra }}
{{ . }}
{{- end }}
command: [/bin/rlsidecar, serve]
args:
  - --config=/etc/rlsidecar/limits
  {{- range .args }}
  - {{ . | quote }}
  {{- end }}
  - --on-backend-failure={{ $v.onBackendFailure }}
  {{- if $v.localShare }}
  - --local-share={{ $v.localShare }}
  {{- end }}
  {{- if include "rlsidecar.hasRedis" .root }}
  {{- with $v.redis.url }}
  - {{ printf "--redis-url=%s" . | quote }}
  {{- end }}
  - --backend-timeout={{ $v.redis.timeout }}
  - {{ printf "--redis-key-prefix=%s" $v.redis.keyPrefix | quote }}
  {{- if $v.redis.passwordSecret.name }}
  - --redis-password-file=/etc/rlsidecar/redis/{{ $v.redis.passwordSecret.key }}
  {{- end }}
  {{- if $v.redis.tls.caSecret }}
  - --redis-tls-ca=/etc/rlsidecar/redis-ca/ca.crt
  {{- end }}
  {{- if $v.redis.tls.clientSecret }}
  - --redis-tls-cert=/etc/rlsidecar/redis-tls/tls.crt
  - --redis-tls-key=/etc/rlsidecar/redis-tls/tls.key
  {{- end }}
  {{- end }}
  {{- if $v.tls.secret }}
  - --tls-cert=/etc/rlsidecar/tls/tls.crt
  - --tls-key=/etc/rlsidecar/tls/tls.key
  {{- if $v.tls.clientCertificates }}
  - --tls-client-ca=/etc/rlsidecar/tls/ca.crt
  {{- end }}
  {{- with $v.tls.clientName }}
  - --tls-client-name={{ . }}
  {{- end }}
  {{- end }}
  {{- if $v.metrics.enabled }}
  - --metrics-listen=:{{ $v.metrics.port }}
  {{- end }}
  - --drain-delay={{ $v.drain.delay }}
  - --drain-timeout={{ $v.drain.timeout }}
  - --log-level={{ $v.logLevel }}
  - --log-format={{ $v.logFormat }}
  {{- range $v.extraArgs }}
  - {{ . | quote }}
  {{- end }}
{{- $env := list }}
{{- range $name, $secret := dict "RLSIDECAR_REDIS_URL" $v.redis.urlSecret "RLSIDECAR_API_TOKEN" $v.apiTokenSecret "RLSIDECAR_ADMIN_TOKEN" $v.adminTokenSecret }}
{{- if $secret.name }}
{{- $env = append $env (dict "name" $name "valueFrom" (dict "secretKeyRef" (dict "name" $secret.name "key" $secret.key))) }}
{{- end }}
{{- end }}
{{- with concat $env $v.extraEnv }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  {{- toYaml .ports | nindent 2 }}
{{ .probes }}
resources:
  {{- toYaml $v.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  runAsUser: 65534
  runAsGroup: 65534
  capabilities:
    drop: [ALL]
  seccompProfile:
    type: RuntimeDefault
volumeMounts:
  - name: rlsidecar-limits
    mountPath: /etc/rlsidecar/limits
    readOnly: true
  {{- range include "rlsidecar.secrets" .root | fromYamlArray }}
  - name: rlsidecar-{{ .at }}
    mountPath: /etc/rlsidecar/{{ .at }}
    readOnly: true
  {{- end }}
{{- end }}

{{- /*
The Secrets to mount: a list of {at: the folder below /etc/rlsidecar, secret: its name}. They are mounted as folders,
because Kubernetes does not update files that are mounted one by one (subPath).
*/ -}}
{{- define "rlsidecar.secrets" -}}
{{- $v := .Values }}
{{- $all := list }}
{{- with $v.tls.secret }}{{ $all = append $all (dict "at" "tls" "secret" .) }}{{ end }}
{{- if include "rlsidecar.hasRedis" . }}
{{- with $v.redis.passwordSecret.name }}{{ $all = append $all (dict "at" "redis" "secret" .) }}{{ end }}
{{- with $v.redis.tls.caSecret }}{{ $all = append $all (dict "at" "redis-ca" "secret" .) }}{{ end }}
{{- with $v.redis.tls.clientSecret }}{{ $all = append $all (dict "at" "redis-tls" "secret" .) }}{{ end }}
{{- end }}
{{- toYaml $all }}
{{- end }}

{{- define "rlsidecar.volumes" -}}
- name: rlsidecar-limits
  configMap:
    name: {{ include "rlsidecar.configMap" . }}
{{- range include "rlsidecar.secrets" . | fromYamlArray }}
- name: rlsidecar-{{ .at }}
  secret:
    secretName: {{ .secret }}
{{- end }}
{{- end }}

{{- /*
The container for a pod of your own chart, as a list of one. With sidecar.native it is for initContainers, otherwise
for containers. It listens at 127.0.0.1:8081 (gRPC) and 127.0.0.1:8080 (HTTP). Pass the context of this chart:
.Subcharts.rlsidecar.
*/ -}}
{{- define "rlsidecar.sidecar" -}}
{{- $v := .Values -}}
{{- $ports := list }}
{{- if $v.metrics.enabled }}
{{- $ports = append $ports (dict "name" "rl-metrics" "containerPort" $v.metrics.port) }}
{{- end }}
{{- $extra := ternary "restartPolicy: Always" "" $v.sidecar.native }}
{{- $probes := include "rlsidecar.execProbes" . }}
{{- list (include "rlsidecar.container" (dict "root" . "args" list "ports" $ports "probes" $probes "extra" $extra) | fromYaml) | toYaml }}
{{- end }}

{{- /* Probes of type exec, because the kubelet cannot reach listeners on loopback. */ -}}
{{- define "rlsidecar.execProbes" -}}
startupProbe: # not readiness: a sidecar that waits for a password that Redis accepts must not be restarted
  exec:
    command: [/bin/rlsidecar, healthcheck, --live]
  periodSeconds: 1
  timeoutSeconds: 3
  failureThreshold: 60
readinessProbe:
  exec:
    command: [/bin/rlsidecar, healthcheck]
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 1
{{- end }}
