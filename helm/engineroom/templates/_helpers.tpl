{{/* Object names come from the release; 63 is the limit of a Service's name. */}}
{{- define "engineroom.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The same with a suffix that truncation leaves whole. Argument: list of context and suffix. */}}
{{- define "engineroom.nameWith" -}}
{{- $suffix := printf "-%s" (index . 1) -}}
{{- $room := sub 63 (len $suffix) | int -}}
{{- include "engineroom.fullname" (index . 0) | trunc $room | trimSuffix "-" -}}{{- $suffix -}}
{{- end -}}

{{- define "engineroom.configMapName" -}}
{{- include "engineroom.nameWith" (list . "repository") -}}
{{- end -}}

{{- define "engineroom.claimName" -}}
{{- .Values.storage.existingClaim | default (include "engineroom.nameWith" (list . "artifacts")) -}}
{{- end -}}

{{/*
A Deployment's selector can never change, so nothing here depends on a value: the name is the chart's,
also with `nameOverride`.
*/}}
{{- define "engineroom.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: server
{{- end -}}

{{/* What pods carry. Without the version: a new chart with the same pod must not restart it. */}}
{{- define "engineroom.podLabels" -}}
{{ include "engineroom.selectorLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
engineroom/lane: {{ .Values.model.lane | quote }}
engineroom/sku: {{ .Values.model.sku | quote }}
{{- end -}}

{{/* Labels of an object. Argument: list of context and component. */}}
{{- define "engineroom.labels" -}}
{{- with index . 0 -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
engineroom/lane: {{ .Values.model.lane | quote }}
engineroom/sku: {{ .Values.model.sku | quote }}
{{- end }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/*
A string as a double-quoted YAML scalar that every YAML parser reads back byte for byte.

JSON's escapes are YAML's too, but JSON leaves some characters bare that YAML folds (U+0085) or refuses
(U+007F to U+009F, U+FEFF, U+FFFE, U+FFFF). toYaml will not do: its block style loses a carriage return,
and Helm removes the text that Go prints for a missing value; toJson escapes the latter's "<".
*/}}
{{- define "engineroom.string" -}}
{{- $text := toJson . -}}
{{- range concat (untilStep 0x7f 0xa0 1) (list 0xfeff 0xfffe 0xffff) -}}
{{- $text = replace (printf "%c" .) (printf "\\u%04x" .) $text -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{/* "2Gi" as whole Mi; the schema admits Mi, Gi and Ti only. */}}
{{- define "engineroom.mebibytes" -}}
{{- $count := regexFind "^[0-9]+" . | int64 -}}
{{- $unit := regexFind "[A-Z]i$" . -}}
{{- mul $count (get (dict "Mi" 1 "Gi" 1024 "Ti" 1048576) $unit | int64) -}}
{{- end -}}

{{- define "engineroom.graceSeconds" -}}
{{- if .Values.launch.wrapper -}}
{{- $kill := include "engineroom.killSeconds" . | int64 -}}
{{- add .Values.drain.preStopSeconds $kill $kill 30 -}}
{{- else -}}
{{- add .Values.drain.preStopSeconds .Values.drain.exitTimeoutSeconds 30 -}}
{{- end -}}
{{- end -}}

{{/* Seconds that mpirun gives its processes to end. */}}
{{- define "engineroom.killSeconds" -}}
{{- add .Values.drain.exitTimeoutSeconds 5 -}}
{{- end -}}

{{- define "engineroom.deadlineSeconds" -}}
{{- add .Values.startup.budgetSeconds 300 -}}
{{- end -}}
