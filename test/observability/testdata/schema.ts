// Grafana's types of a dashboard, its panels and their options, changed to fit JSON: an enum of strings
// accepts its strings. TestDashboardFitsGrafana appends the dashboard as a literal, so that the compiler
// refuses keys that Grafana does not know.
import type * as grafana from '@grafana/schema';
import type * as barGauge from './node_modules/@grafana/schema/dist/types/raw/composable/bargauge/panelcfg/x/types.gen';
import type * as heatmap from './node_modules/@grafana/schema/dist/types/raw/composable/heatmap/panelcfg/x/types.gen';
import type * as table from './node_modules/@grafana/schema/dist/types/raw/composable/table/panelcfg/x/types.gen';
import type * as timeSeries from './node_modules/@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/types.gen';

type JSONOf<T> = T extends string ? `${T}` : T extends object ? {[K in keyof T]: JSONOf<T[K]>} : T;

// The fields of a query that the Prometheus data source reads. Its types are not published.
interface Query {
  refId: string;
  datasource: {type: 'prometheus'; uid: '${datasource}'};
  editorMode: 'code';
  expr: string;
  legendFormat: string;
  range: boolean;
  instant: boolean;
  format?: 'table' | 'heatmap';
}
interface Annotation extends grafana.AnnotationQuery {
  expr: string;
  titleFormat: string;
  textFormat: string;
  step: string;
}
interface Variable extends grafana.VariableModel {
  definition?: string;
}

// Grafana's types without their index signatures, which would allow every key.
type Field<Custom> = Omit<grafana.FieldConfig, 'custom' | 'thresholds'> & {
  custom?: Custom;
  thresholds?: {mode: grafana.ThresholdsMode; steps: {color: string; value: number | null}[]};
};
type Panel<Type extends string, Options, Custom> = Omit<
  grafana.Panel, 'type' | 'options' | 'fieldConfig' | 'targets' | 'description' | 'title' | 'id' | 'gridPos'
> & {
  type: Type;
  id: number;
  title: string;
  description: string;
  gridPos: grafana.GridPos;
  options: Options;
  fieldConfig: {defaults: Field<Custom>; overrides: {matcher: grafana.MatcherConfig; properties: {id: string; value: unknown}[]}[]};
  targets: Query[];
};
type AnyPanel =
  | Panel<'timeseries', timeSeries.Options, timeSeries.FieldConfig>
  | Panel<'bargauge', barGauge.Options, {}>
  | Panel<'heatmap', heatmap.Options, heatmap.FieldConfig>
  | Panel<'table', Omit<table.Options, 'frameIndex'>, table.FieldConfig>;
type Row = Omit<grafana.RowPanel, 'panels'> & {panels: AnyPanel[]};
type Dashboard = Omit<grafana.Dashboard, 'panels' | 'annotations' | 'templating'> & {
  panels: (AnyPanel | Row)[];
  annotations: {list: Annotation[]};
  templating: {list: Variable[]};
};

export const dashboard: JSONOf<Dashboard> =
