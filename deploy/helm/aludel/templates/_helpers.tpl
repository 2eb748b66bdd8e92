{{- define "aludel.image" -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- end }}

{{- /* All servers of a pool, by the name of their headless Service: dict root, field, name (decode-chat), port. Certificates
carry whole names. */}}
{{- define "aludel.targets" -}}
{{- $suffix := "" }}
{{- if .root.Values.tls.enabled }}{{ $suffix = printf ".%s.svc" .root.Release.Namespace }}{{ end }}
{{ .field }}: "dns:///{{ .name }}{{ $suffix }}:{{ .port }}"
{{- end }}

{{- define "aludel.grpcTls" -}}
grpc_tls {
  certificate_file: "/run/secrets/aludel/tls/tls.crt"
  key_file: "/run/secrets/aludel/tls/tls.key"
  ca_file: "/run/secrets/aludel/tls/ca.crt"
}
{{- end }}

{{- define "aludel.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- if or .root.Values.tls.enabled .root.Values.apiKeysSecret .secrets }}
fsGroup: 65532
{{- end }}
{{- end }}

{{- define "aludel.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Probes: startup as long as loading may take; liveness is the watchdog and never a peer. dict path, failures. */}}
{{- define "aludel.probes" -}}
startupProbe:
  httpGet: {path: {{ .path }}, port: admin}
  periodSeconds: 1
  failureThreshold: {{ .failures }}
readinessProbe:
  httpGet: {path: /ready, port: admin}
  periodSeconds: 2
  failureThreshold: 1
livenessProbe:
  httpGet: {path: /health, port: admin}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{- define "aludel.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- toYaml . | nindent 6 }}
{{- end }}

{{- /* A pool of servers of one role: dict root, role, pool, text (its configuration), replicas, ports (name to number). */}}
{{- define "aludel.pool" -}}
{{- $root := .root }}
{{- $remote := $root.Values.sharedStore | default dict }}
{{- $password := "" }}
{{- if and (eq .role "prefill") $remote.address }}{{ $password = $remote.passwordSecret }}{{ end }}
{{- $name := printf "%s-%s" .role .pool }}
{{- $config := printf "%s-config-%s-%s" .role .pool (.text | sha256sum | trunc 10) }}
{{- $labels := dict "app.kubernetes.io/name" (printf "aludel-%s" .role) "app.kubernetes.io/instance" .pool }}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $config }}
  labels: {app.kubernetes.io/instance: {{ .pool }}}
data:
  {{ .role }}.textproto: | {{- .text | nindent 4 }}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}
  labels: {{- toYaml $labels | nindent 4 }}
spec:
  {{- if not $root.Values.autoscaling.enabled }}
  replicas: {{ .replicas }}
  {{- end }}
  serviceName: {{ $name }}
  podManagementPolicy: Parallel
  # Longer than peers take to hear of its new address (they believe a DNS answer for 30 s at most) and to find it, before its
  # sibling stops.
  minReadySeconds: 35
  selector:
    matchLabels: {{- toYaml $labels | nindent 6 }}
  template:
    metadata:
      labels: {{- toYaml $labels | nindent 8 }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      securityContext: {{- include "aludel.podSecurity" (dict "root" $root "secrets" $password) | nindent 8 }}
      # More than drain_timeout_ms and the seconds that a cancelled request may still take.
      terminationGracePeriodSeconds: 60
      topologySpreadConstraints: {{- include "aludel.spread" $labels | nindent 8 }}
      {{- if $root.Values.servers.gpu }}
      tolerations:
        - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
      {{- end }}
      containers:
        - name: {{ .role }}
          image: {{ include "aludel.image" $root }}
          command: [/usr/bin/aludel-{{ .role }}]
          args: [--config, /etc/aludel/{{ .role }}.textproto]
          {{- with $root.Values.servers.rdma }}
          {{- if .enabled }}
          env:
            - {name: UCX_NET_DEVICES, value: {{ .devices | quote }}}
          {{- end }}
          {{- end }}
          ports:
            {{- range .ports }}
            - {name: {{ .name }}, containerPort: {{ .port }}}
            {{- end }}
          {{- include "aludel.probes" (dict "path" "/ready" "failures" 1800) | nindent 10 }}
          resources: {{- toYaml $root.Values.servers.resources | nindent 12 }}
          securityContext: {{- include "aludel.containerSecurity" $root | nindent 12 }}
          volumeMounts:
            - {name: config, mountPath: /etc/aludel, readOnly: true}
            {{- if $root.Values.tls.enabled }}
            - {name: tls, mountPath: /run/secrets/aludel/tls, readOnly: true}
            {{- end }}
            {{- if $password }}
            - {name: store-remote, mountPath: /run/secrets/aludel/store, readOnly: true}
            {{- end }}
            {{- if $root.Values.modelsVolume.enabled }}
            - {name: models, mountPath: /var/lib/aludel/models, readOnly: true}
            {{- end }}
            {{- if $root.Values.servers.rdma.enabled }}
            - {name: shared-memory, mountPath: /dev/shm}
            {{- end }}
      volumes:
        - name: config
          configMap: {name: {{ $config }}}
        {{- if $root.Values.tls.enabled }}
        - name: tls
          secret: {secretName: {{ .role }}-tls, defaultMode: 0440}
        {{- end }}
        {{- if $password }}
        - name: store-remote
          secret: {secretName: {{ $password }}, defaultMode: 0440}
        {{- end }}
        {{- if $root.Values.modelsVolume.enabled }}
        - name: models
          persistentVolumeClaim: {claimName: {{ $root.Values.modelsVolume.claim | default "models" }}, readOnly: true}
        {{- end }}
        {{- if $root.Values.servers.rdma.enabled }}
        - name: shared-memory
          emptyDir: {medium: Memory, sizeLimit: {{ $root.Values.servers.rdma.sharedMemory }}}
        {{- end }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  labels: {{- toYaml $labels | nindent 4 }}
spec:
  # Every address of the name is a server, which peers call one by one. They find out themselves which are ready.
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{- toYaml $labels | nindent 4 }}
  ports:
    {{- range .ports }}
    {{- if ne .name "admin" }}
    - {name: {{ .name }}, port: {{ .port }}, targetPort: {{ .name }}}
    {{- end }}
    {{- end }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  labels: {{- toYaml $labels | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- toYaml $labels | nindent 6 }}
{{- end }}
