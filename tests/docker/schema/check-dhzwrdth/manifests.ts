import { Service as Kind0 } from "kubernetes-types/core/v1";
export const document0: Kind0 = {
 "apiVersion": "v1",
 "kind": "Service",
 "metadata": {
  "name": "lintel-metrics",
  "labels": {
   "app.kubernetes.io/name": "lintel",
   "app.kubernetes.io/component": "metrics"
  }
 },
 "spec": {
  "clusterIP": "None",
  "publishNotReadyAddresses": true,
  "selector": {
   "app.kubernetes.io/name": "lintel"
  },
  "ports": [
   {
    "name": "metrics",
    "port": 9464,
    "targetPort": "metrics"
   }
  ]
 }
};
